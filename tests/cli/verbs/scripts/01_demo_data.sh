#!/usr/bin/env bash
# Tenant, namespaces with retention, topics: how demos begin.
set -euo pipefail
TENANT=demo
pulsar-admin tenants create $TENANT --allowed-clusters standalone
for ns in raw clean; do
    pulsar-admin namespaces create $TENANT/$ns
    pulsar-admin namespaces set-retention $TENANT/$ns --size 1G --time 3d
done
pulsar-admin topics create persistent://$TENANT/raw/events
pulsar-admin namespaces list $TENANT
