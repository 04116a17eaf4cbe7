#!/usr/bin/env bash
# Commands of producer/scripts/init-namespaces.sh in nmartinbekier/de2_g12_project.
set -e
PULSAR_ADMIN_PATH=bin/pulsar-admin
$PULSAR_ADMIN_PATH namespaces create public/moving
$PULSAR_ADMIN_PATH namespaces set-retention public/moving --size 0 --time 0
$PULSAR_ADMIN_PATH namespaces set-deduplication public/moving --enable
$PULSAR_ADMIN_PATH namespaces create public/static
$PULSAR_ADMIN_PATH namespaces set-retention public/static --size -1 --time -1
$PULSAR_ADMIN_PATH namespaces set-deduplication public/static --enable
$PULSAR_ADMIN_PATH namespaces get-retention public/static
$PULSAR_ADMIN_PATH namespaces get-deduplication public/static
