#!/usr/bin/env bash
# Commands of pulsar-client-cpp/pulsar-test-service-start.sh in apache/pulsar.
PULSAR_DIR=.
until curl "$PULSAR_ADMIN_URL/metrics" > /dev/null 2>&1; do sleep 1; done
$PULSAR_DIR/bin/pulsar-admin clusters list | grep -q '^standalone$' ||
    $PULSAR_DIR/bin/pulsar-admin clusters create standalone --url http://localhost:8080/ \
        --url-secure https://localhost:8443/ --broker-url pulsar://localhost:6650/ \
        --broker-url-secure pulsar+ssl://localhost:6651/
$PULSAR_DIR/bin/pulsar-admin tenants create public -r "anonymous" -c "standalone" || echo "tenant exists"
$PULSAR_DIR/bin/pulsar-admin namespaces create public/default || echo "namespace exists"
$PULSAR_DIR/bin/pulsar-admin namespaces grant-permission public/default --actions produce,consume --role "anonymous"
$PULSAR_DIR/bin/pulsar-admin namespaces create public/default-4 --clusters standalone
$PULSAR_DIR/bin/pulsar-admin namespaces grant-permission public/default-4 --actions produce,consume --role "anonymous"
$PULSAR_DIR/bin/pulsar-admin namespaces set-encryption-required public/default-4 -e
$PULSAR_DIR/bin/pulsar-admin tenants create private -r "" -c "standalone"
$PULSAR_DIR/bin/pulsar-admin namespaces create private/auth --clusters standalone
$PULSAR_DIR/bin/pulsar-admin namespaces grant-permission private/auth --actions produce,consume --role "token-principal"
$PULSAR_DIR/bin/pulsar-admin namespaces permissions private/auth
$PULSAR_DIR/bin/pulsar-admin namespaces get-encryption-required public/default-4
