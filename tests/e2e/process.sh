# shellcheck shell=bash
# Background processes by name: pid in $CLUSTER_DIR/pids/NAME, output in $CLUSTER_DIR/logs/NAME.log.
# Sourced by cluster and run; independent of the programs that it starts. Linux only (/proc).

export LC_ALL=C # the programs' formats of dates and decimals

seconds_since() { awk -v from="$1" -v to="$EPOCHREALTIME" 'BEGIN { printf "%.1f", to - from }'; }

# spawn NAME COMMAND...: in its own session, so that Ctrl-C reaches only the script, which then stops everything in order.
spawn() {
  local name=$1
  shift
  mkdir -p "$CLUSTER_DIR/pids" "$CLUSTER_DIR/logs"
  setsid "$@" </dev/null >>"$CLUSTER_DIR/logs/$name.log" 2>&1 &
  local pid=$!
  echo "$pid $(start_time "$pid")" >"$CLUSTER_DIR/pids/$name"
}

# The kernel's start time of a live process. Together with the pid it identifies one process, even after pids have wrapped.
start_time() {
  local stat
  { stat=$(<"/proc/$1/stat"); } 2>/dev/null || return 1
  # shellcheck disable=SC2086 # fields, after the command name, which may hold spaces
  set -- ${stat##*) }
  # The first thread may have ended while others still hold the ports: field 18 counts them.
  { [ "$1" != Z ] || [ "${18}" -gt 1 ]; } && echo "${20}"
}

alive() {
  local pid started
  read -r pid started 2>/dev/null <"$CLUSTER_DIR/pids/$1" || return 1
  [ -n "$started" ] && [ "$(start_time "$pid")" = "$started" ]
}

# stop NAME [SIGNAL]: returns when the process has ended; kills it after 20 s. Succeeds if nothing runs.
stop() {
  local name=$1 signal=${2:-TERM} pid
  if alive "$name"; then
    read -r pid _ <"$CLUSTER_DIR/pids/$name"
    end "$signal" "$pid"
    local deadline=$((SECONDS + 20))
    while alive "$name"; do
      if [ "$SECONDS" -ge "$deadline" ]; then
        echo "$name did not end within 20 s: killed" >&2
        end KILL "$pid"
      fi
      sleep 0.05
    done
  fi
  rm -f "$CLUSTER_DIR/pids/$name"
}

# A spawned process leads a process group, so its children are signalled too.
end() { kill -s "$1" -- "-$2" 2>/dev/null || kill -s "$1" "$2" 2>/dev/null || true; }

log_tail() {
  echo "--- end of $CLUSTER_DIR/logs/$1.log" >&2
  tail -n "${2:-20}" "$CLUSTER_DIR/logs/$1.log" >&2
}

# mark_log NAME: marks the end of the log; log_since NAME: the lines after the mark
mark_log() { { cat "$CLUSTER_DIR/logs/$1.log" 2>/dev/null || true; } | wc -l >"$CLUSTER_DIR/$1.mark"; } # a missing log counts as empty
log_since() { tail -n "+$(($(<"$CLUSTER_DIR/$1.mark") + 1))" "$CLUSTER_DIR/logs/$1.log"; }

# await_http NAME SECONDS CURL_ARGUMENTS...: waits until NAME answers 2xx, or reports why it does not.
await_http() {
  local name=$1 seconds=$2
  shift 2
  local deadline=$((SECONDS + seconds))
  until curl --fail --silent --output /dev/null --max-time 2 "$@"; do
    if ! alive "$name"; then
      echo "$name ended while starting" >&2
      log_tail "$name"
      return 1
    elif [ "$SECONDS" -ge "$deadline" ]; then
      echo "$name: no 2xx answer from ${*: -1} within $seconds s" >&2
      log_tail "$name"
      return 1
    fi
    sleep 0.1
  done
}

# choose_port VARIABLE: sets a free port, unless one is given. It is below 32768, where the kernel's range for outgoing connections starts.
# WVA_E2E_PORTS, `FIRST COUNT`, keeps runs apart that share a machine: a port that was chosen may not be in use yet.
choose_port() {
  local port first count
  read -r first count <<<"${WVA_E2E_PORTS:-20000 12000}"
  until [ -n "${!1:-}" ]; do
    port=$((first + RANDOM % count))
    if ! (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null && [[ " ${chosen_ports[*]:-} " != *" $port "* ]]; then
      printf -v "$1" %s "$port"
    fi
  done
  chosen_ports+=("${!1}")
}
