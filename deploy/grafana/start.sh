#!/bin/sh
# Starts Grafana ("$@") with what depends on the settings of docker-compose.yml.
set -eu

# Whoever reaches Grafana from another machine has to log in; on this machine a look is free.
case "${LISTEN_ADDRESS:-}" in
    127.* | localhost | ::1 | "[::1]") GF_AUTH_ANONYMOUS_ENABLED=true ;;
    *) GF_AUTH_ANONYMOUS_ENABLED=false ;;
esac
export GF_AUTH_ANONYMOUS_ENABLED

# A password counts when the user admin is first made, together with the database. It is always set, lest a first start
# that was cut short leaves Grafana to its own default, which everybody knows.
if [ -z "${GF_SECURITY_ADMIN_PASSWORD:-}" ]; then
    GF_SECURITY_ADMIN_PASSWORD=$(head -c 18 /dev/urandom | base64 | tr '+/' '-_')
    export GF_SECURITY_ADMIN_PASSWORD
    if [ ! -e "${GF_PATHS_DATA:-/var/lib/grafana}/grafana.db" ]; then
        echo "Grafana's user admin gets the password $GF_SECURITY_ADMIN_PASSWORD (made up, and shown only this once)"
    fi
fi

exec "$@"
