#!/bin/bash
until bin/pulsar-admin brokers healthcheck > /dev/null 2>&1; do
    sleep 1
done
bin/pulsar-admin brokers healthcheck
bin/pulsar-admin brokers leader-broker | grep -c serviceUrl
bin/pulsar-admin clusters list
bin/pulsar-admin namespaces list public
