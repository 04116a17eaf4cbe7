#!/usr/bin/env bash
# Commands of .ci/helm.sh in apache/pulsar-helm-chart: what it runs inside its toolset.
set -e
bin/pulsar-admin tenants list | grep -x public
bin/pulsar-admin tenants create pulsar-ci
bin/pulsar-admin namespaces create pulsar-ci/test
bin/pulsar-admin topics create pulsar-ci/test/test-topic
bin/pulsar-admin topics create-subscription -s test pulsar-ci/test/test-topic
bin/pulsar-client produce -m "test-message" pulsar-ci/test/test-topic | tail -n 1
bin/pulsar-admin topics create-subscription -s test2 pulsar-ci/test/test-topic
bin/pulsar-client --url "$PULSAR_URL" produce -m "test-message2" pulsar-ci/test/test-topic | tail -n 1
bin/pulsar-client consume -s test pulsar-ci/test/test-topic | grep -o 'content:.*'
bin/pulsar-client --url "$PULSAR_URL" consume -s test2 pulsar-ci/test/test-topic | grep -o 'content:.*'
