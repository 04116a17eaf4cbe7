#!/bin/bash
# The older place of policies: below topics.
set -e
T=persistent://public/default/policies-of-a-topic
pulsar-admin topics create $T
pulsar-admin topics set-retention -s -1 -t -1 $T
pulsar-admin topics set-message-ttl $T --ttl 30
pulsar-admin topics enable-deduplication $T
pulsar-admin topics get-message-ttl $T
pulsar-admin topics get-retention $T
pulsar-admin topics delete $T
