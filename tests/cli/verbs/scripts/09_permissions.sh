#!/bin/bash
set -e
pulsar-admin namespaces create public/shared
pulsar-admin namespaces grant-permission public/shared --role reader --actions consume
pulsar-admin namespaces permissions public/shared
pulsar-admin namespaces revoke-permission public/shared --role reader
pulsar-admin namespaces permissions public/shared
