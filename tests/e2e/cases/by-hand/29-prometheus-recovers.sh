# shellcheck shell=bash
# (29) As (18), but the number falls when Prometheus works again: under the percent rule, and under the default policy, which removes nothing
# within five minutes after more was needed.

# shellcheck source-path=SCRIPTDIR
ANALYZER=saturation-percent FALLS_WITHIN=150 . "$e2e/cases/18-prometheus-faults.sh"
baseline
ANALYZER=default FALLS_WITHIN=360 . "$e2e/cases/18-prometheus-faults.sh"
