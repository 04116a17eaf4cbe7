#!/bin/bash
set -e
T=public/default/delayed
pulsar-admin topics create $T
pulsar-admin topicPolicies set-message-ttl $T --ttl 3600
pulsar-admin topicPolicies set-delayed-delivery $T --enable --time 1s
pulsar-admin topicPolicies set-max-consumers $T --max-consumers 10
pulsar-admin topicPolicies get-delayed-delivery $T
pulsar-admin topicPolicies get-max-consumers $T
