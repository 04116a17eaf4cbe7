#!/bin/bash
set -e
pulsar-admin namespaces create public/auto --bundles 4
pulsar-admin namespaces set-auto-topic-creation public/auto --enable --type partitioned --num-partitions 2
pulsar-admin namespaces get-auto-topic-creation public/auto
pulsar-admin namespaces set-is-allow-auto-update-schema --enable public/auto
pulsar-admin namespaces set-schema-compatibility-strategy --compatibility BACKWARD public/auto
pulsar-admin namespaces bundles public/auto
