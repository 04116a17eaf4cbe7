#!/bin/bash
set -e
pulsar-admin namespaces create public/backlog
pulsar-admin namespaces set-backlog-quota public/backlog --limit 10M --policy consumer_backlog_eviction
pulsar-admin namespaces set-message-ttl public/backlog --messageTTL 600
pulsar-admin namespaces get-message-ttl public/backlog
pulsar-admin namespaces remove-backlog-quota public/backlog
pulsar-admin namespaces get-backlog-quotas public/backlog
