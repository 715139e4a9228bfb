# shellcheck shell=bash
# (29) As (18), and when Prometheus is whole again the number falls: by the percent rule, and by the default policy, which removes nothing
# within five minutes after more was needed.

# shellcheck source-path=SCRIPTDIR
ANALYZER=saturation-percent FALLS_WITHIN=150 . "$e2e/cases/18-prometheus-spoiled.sh"
baseline
ANALYZER=default FALLS_WITHIN=360 . "$e2e/cases/18-prometheus-spoiled.sh"
