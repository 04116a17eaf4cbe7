#!/bin/sh
# What may be there already must not stop a start.
pulsar-admin tenants create app || true
pulsar-admin tenants create app || echo "tenant exists"
pulsar-admin namespaces create app/main 2>/dev/null || true
pulsar-admin namespaces create app/main 2>/dev/null || echo "namespace exists"
pulsar-admin tenants list | grep -x app
