#!/usr/bin/env bash
# Commands of tests/compose/standalone/scripts/init-standalone.sh in fsprojects/pulsar-client-dotnet.
set -e
bin/pulsar-admin namespaces create public/retention
bin/pulsar-admin namespaces create public/deduplication
bin/pulsar-admin namespaces set-retention public/retention --time 3h --size 1G
bin/pulsar-admin namespaces set-deduplication public/deduplication --enable
bin/pulsar-admin namespaces set-schema-validation-enforce --enable public/deduplication
bin/pulsar-admin topics create-partitioned-topic persistent://public/default/partitioned --partitions 3
bin/pulsar-admin topics create-partitioned-topic persistent://public/default/partitioned-dl-test --partitions 2
bin/pulsar-admin topics create-partitioned-topic persistent://public/deduplication/partitioned --partitions 3
bin/pulsar initialize-transaction-coordinator-metadata -cs standalone:2181 -c standalone \
    --initial-num-transaction-coordinators 2
bin/pulsar-admin topics list-partitioned-topics public/deduplication
bin/pulsar-admin namespaces get-retention public/retention
