# shellcheck shell=bash
# Background processes by name: pid in $BED/pids/NAME, output in $BED/logs/NAME.log.
# Sourced by bed and run; holds no knowledge of what it starts. Linux only (/proc).

export LC_ALL=C # dates and decimal points as the programs print them

seconds_since() { awk -v from="$1" -v to="$EPOCHREALTIME" 'BEGIN { printf "%.1f", to - from }'; }

# spawn NAME COMMAND...: its own session, so that Ctrl-C reaches the script alone and the script ends things in order.
spawn() {
  local name=$1
  shift
  mkdir -p "$BED/pids" "$BED/logs"
  setsid "$@" </dev/null >>"$BED/logs/$name.log" 2>&1 &
  local pid=$!
  echo "$pid $(start_time "$pid")" >"$BED/pids/$name"
}

# The kernel's start time of a live process: with the pid it names one process, also after pids have wrapped.
start_time() {
  local stat
  { stat=$(<"/proc/$1/stat"); } 2>/dev/null || return 1
  # shellcheck disable=SC2086 # fields, after the command name, which may hold spaces
  set -- ${stat##*) }
  [ "$1" != Z ] && echo "${20}"
}

alive() {
  local pid started
  read -r pid started 2>/dev/null <"$BED/pids/$1" || return 1
  [ -n "$started" ] && [ "$(start_time "$pid")" = "$started" ]
}

# stop NAME [SIGNAL]: returns when it has ended; killed after 20 s. Nothing to do is success.
stop() {
  local name=$1 signal=${2:-TERM} pid
  if alive "$name"; then
    read -r pid _ <"$BED/pids/$name"
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
  rm -f "$BED/pids/$name"
}

# A spawned process leads a group: what it started goes with it.
end() { kill -s "$1" -- "-$2" 2>/dev/null || kill -s "$1" "$2" 2>/dev/null || true; }

log_tail() {
  echo "--- end of $BED/logs/$1.log" >&2
  tail -n "${2:-20}" "$BED/logs/$1.log" >&2
}

# mark_log NAME: from now on; log_since NAME: what it has logged since then
mark_log() { { cat "$BED/logs/$1.log" 2>/dev/null || true; } | wc -l >"$BED/$1.mark"; } # none is a log without lines
log_since() { tail -n "+$(($(<"$BED/$1.mark") + 1))" "$BED/logs/$1.log"; }

# await_http NAME SECONDS CURL_ARGUMENTS...: until NAME answers 2xx; says why when it doesn't.
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
      echo "$name: no good answer from ${*: -1} within $seconds s" >&2
      log_tail "$name"
      return 1
    fi
    sleep 0.1
  done
}

# choose_port VARIABLE: a port nobody listens on, unless one is given. Below 32768, where the kernel takes ports for outgoing connections.
choose_port() {
  local port
  until [ -n "${!1:-}" ]; do
    port=$((20000 + RANDOM % 12000))
    if ! (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null && [[ " ${chosen_ports[*]:-} " != *" $port "* ]]; then
      printf -v "$1" %s "$port"
    fi
  done
  chosen_ports+=("${!1}")
}
