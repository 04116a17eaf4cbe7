#!/usr/bin/env bash
# Commands of pulsar/pulsar-cli.md in aricjean/study-note: the older group of verbs for topics.
set -e
T=persistent://test-tenant/ns1/tp1
pulsar-admin tenants create test-tenant
pulsar-admin namespaces create test-tenant/ns1
pulsar-admin namespaces grant-permission test-tenant/ns1 --actions produce,consume --role 'my.role.*'
pulsar-admin namespaces revoke-permission test-tenant/ns1 --role 'my.role.*'
pulsar-admin topics create $T
pulsar-admin topics create-subscription -s my-subscription $T
bin/pulsar-client produce $T --messages "hello-pulsar" -n 20 > /dev/null
pulsar-admin persistent list test-tenant/ns1
pulsar-admin persistent grant-permission --actions produce,consume --role application1 $T
pulsar-admin persistent permissions $T
pulsar-admin persistent revoke-permission --role application1 $T
pulsar-admin persistent unload $T
pulsar-admin persistent stats $T | grep -c '"my-subscription"'
pulsar-admin persistent stats-internal $T | grep numberOfEntries
pulsar-admin persistent peek-messages --count 10 --subscription my-subscription $T | grep -c 'Message ID'
pulsar-admin persistent skip --count 10 --subscription my-subscription $T
pulsar-admin topics stats $T | grep '"msgBacklog"'
pulsar-admin persistent clear-backlog --subscription my-subscription $T
pulsar-admin topics stats $T | grep '"msgBacklog"'
pulsar-admin persistent reset-cursor --subscription my-subscription --time 10 $T
pulsar-admin persistent bundle-range $T
pulsar-admin persistent subscriptions $T
pulsar-admin persistent unsubscribe --subscription my-subscription $T
pulsar-admin persistent delete $T
bin/pulsar-admin topics create-partitioned-topic persistent://test-tenant/ns1/parts --partitions 4
pulsar-admin topics update-partitioned-topic persistent://test-tenant/ns1/parts --partitions 8
pulsar-admin topics get-partitioned-topic-metadata persistent://test-tenant/ns1/parts | grep '"partitions"'
pulsar-admin topics partitioned-stats persistent://test-tenant/ns1/parts --per-partition | grep -c '"metadata"'
