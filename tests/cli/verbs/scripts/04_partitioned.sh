#!/bin/bash
set -e
bin/pulsar-admin topics create-partitioned-topic persistent://public/default/sensors --partitions 3
bin/pulsar-admin topics update-partitioned-topic persistent://public/default/sensors -p 4
bin/pulsar-admin topics get-partitioned-topic-metadata persistent://public/default/sensors | grep '"partitions"'
bin/pulsar-admin topics list-partitioned-topics public/default | grep sensors
bin/pulsar-admin topics delete-partitioned-topic persistent://public/default/sensors -f
