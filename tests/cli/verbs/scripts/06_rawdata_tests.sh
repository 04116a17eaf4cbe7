#!/usr/bin/env bash
# Commands of src/test/scripts/init-pulsar.sh in statisticsnorway/rawdata-client-provider-pulsar.
set -e
bin/pulsar-admin tenants create test
bin/pulsar-admin namespaces create test/rawdata
bin/pulsar-admin namespaces set-retention --size -1 --time -1 test/rawdata
bin/pulsar-admin namespaces get-retention test/rawdata
