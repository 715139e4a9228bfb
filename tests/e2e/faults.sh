# shellcheck shell=bash
# Fault injection, and the history of all answers that is recorded meanwhile. Sourced by actors.sh.

# ---- a network that fails on demand: PROXY between an instance of wva and what it talks to

# start_proxy NAME ADDRESS: forwards connections to ADDRESS. Sets NAME_url (where it listens) and NAME_orders (where faults are set).
start_proxy() {
  local name=$1 to=$2 listen="" orders=""
  choose_port listen
  choose_port orders
  spawn "proxy-$name" "$PROXY" --listen "127.0.0.1:$listen" --to "${to#http*://}" --control "127.0.0.1:$orders"
  await_http "proxy-$name" 10 "http://127.0.0.1:$orders/"
  printf -v "${name}_url" %s "127.0.0.1:$listen"
  printf -v "${name}_orders" %s "http://127.0.0.1:$orders"
}

# inject_fault NAME [FAULT...]: for example up=hold down=hold delay=300 answers=failed. Without FAULT, the network works normally again.
inject_fault() {
  local name=${1}_orders query
  query=$(IFS='&' && echo "${*:2}")
  curl --fail --silent --show-error --output /dev/null -X POST "${!name}/faults?$query"
}

# ---- two instances, each with its own proxy to the API server

# two_instances: starts both behind a load balancer. wva-0 leads.
two_instances() {
  local began=$EPOCHREALTIME
  stop wva-0
  stop wva-1
  start_proxy api_0 "$API_URL"
  start_proxy api_1 "$API_URL"
  WVA_API_URL=https://$api_0_url WVA_ARGS="--record-snapshots 8 ${WVA_ARGS:-}" start_wva wva-0 "$wva_port"
  eventually 30 "wva-0 holds the Lease" holder_is wva-0
  WVA_API_URL=https://$api_1_url WVA_ARGS="--record-snapshots 8 ${WVA_ARGS:-}" start_wva wva-1 "$second_port"
  start_balancer "$balancer_port" "$wva_port" "$second_port"
  route_api_server_to "$balancer_port"
  eventually 60 "two instances behind a load balancer: the API server reaches them" is_available
  trust_wva
  echo "      (two instances after $(seconds_since "$began") s)"
}
# trust_wva: ask_instance uses the current CA of the instances.
trust_wva() { kubectl get apiservice v1beta1.external.metrics.k8s.io -o jsonpath='{.spec.caBundle}' | base64 -d >"$CLUSTER_DIR/wva-ca.crt"; }
holder_is() { local now; now=$(holder) && echo "$now" && [[ $now == "$1"* ]]; }

# Removes what a fault case left behind.
end_faults() {
  local file
  end_history
  signal_to wva-0 CONT 2>/dev/null || true
  for file in "$CLUSTER_DIR"/pids/proxy-*; do
    [ ! -e "$file" ] || { stop "${file##*/}" && stop wva-0; } # an instance that used it cannot connect any more
  done
}

# signal_to NAME SIGNAL: signals one process of the test cluster, without its children
signal_to() {
  local pid
  read -r pid _ 2>/dev/null <"$CLUSTER_DIR/pids/$1" || return
  kill -s "$2" "$pid"
}

# ---- the history: every answer and every evaluation of every instance, polled four times per second

# begin_history NAME:PORT... or NAME:ADDRESS:PORT...: starts recording. HISTORY_SECONDS: the maximum length (one hour by default).
begin_history() {
  local instance address instances=()
  end_history
  trust_wva
  for instance in "$@"; do
    address=${instance#*:}
    [[ $address == *:* ]] || address=127.0.0.1:$address
    instances+=(--instance "${instance%%:*}=https://$address")
  done
  history_began=$EPOCHREALTIME
  rm -f "$CLUSTER_DIR/history.jsonl"
  spawn history "$HISTORY" "${instances[@]}" --server-name "wva.$release_namespace.svc" --ca "$CLUSTER_DIR/wva-ca.crt" \
    --cert "$CLUSTER_DIR/pki/front-proxy-client.crt" --key "$CLUSTER_DIR/pki/front-proxy-client.key" --seconds "${HISTORY_SECONDS:-3600}" --out "$CLUSTER_DIR/history.jsonl"
}
end_history() { stop history; }

# read_history: one line per answer and per decision: time, instance, status, number and the second of its evidence. A decision can be
# answered up to one second before it is listed, so it counts from then on. Decisions in the first poll that are of an earlier term than the
# newest are left out, because they were made before the history began.
read_history() {
  end_history
  jq -r --arg began "$history_began" 'select(.kind | . != "evaluation" and . != "began") | .numbers["llm/llama"] as $number
    | "\(.answered + ($began | tonumber)) \(.instance) \(if $number then 200 else .status // 0 end) \($number.value // "-") \($number.evidence // "-")"' \
    "$CLUSTER_DIR/history.jsonl" | sort -n >"$CLUSTER_DIR/history.answers"
  jq -rs --arg began "$history_began" 'map(select(.kind == "evaluation"))
    | (map(select(.since == null).term.epoch) | max) as $term_at_first
    | .[] | select(.since != null or .term.epoch == $term_at_first) | (.numbers["llm/llama"] // empty) as $number
    | "\((.since // .answered) - 1 + ($began | tonumber)) \(.instance) \($number.value) \($number.evidence)"' "$CLUSTER_DIR/history.jsonl" | sort -n >"$CLUSTER_DIR/history.decisions"
}

# history_is_possible: the history checker finds no contradiction
history_is_possible() {
  local actual
  read_history
  actual=$("$HISTORY" --check "$CLUSTER_DIR/history.jsonl") || failed "the answers are not possible: $actual"
  passed "the history is consistent: $actual"
}

# history_holds DECIDERS [LAPSED FROM TO]: ends the history and checks it. DECIDERS: a pattern of the instances that decided, in order.
# LAPSED: an instance whose Lease had expired by its own clock between these times.
history_holds() {
  local lapsed=${2:-nobody} from=${3:-0} to=${4:-0} actual
  history_is_possible
  actual=$(awk '$2 != last { printf "%s%s", separator, $2; separator = ", "; last = $2 }' "$CLUSTER_DIR/history.decisions")
  # shellcheck disable=SC2053 # a pattern
  [[ $actual == $1 ]] || failed "deciding instances: $actual, expected $1"
  passed "deciding instances, from $(wc -l <"$CLUSTER_DIR/history.decisions") evaluations: $actual"
  is "$(answers_that 'status == 200') >= 20" >/dev/null || failed "too few numbers among the answers to judge: see $CLUSTER_DIR/history.answers"
  assert_eq "numbers of an earlier term, $grace s after the first decision of the next term, of $(answers_that 'status == 200')" \
    "$(answers_that 'status == 200 && decider && when > begun + grace && when < until && !made_by(decider)' first)" 0
  [ "$lapsed" = nobody ] || assert_eq "numbers of its own that $lapsed answered after its Lease had expired" \
    "$(answers_that "status == 200 && who == \"$lapsed\" && when > $from && when < $to && made_by(who) && !made_by_others(who)" first)" 0
}
# Seconds until every instance answers a new leader's decision: it writes within 2 s, and a read waits for it for 1 s.
grace=5

# answers_that CONDITION [first]: the number of answers that match, and the first of them. `until` is the time of the last decision read; a later
# answer may come from a decision that was not read.
answers_that() {
  awk -v grace="$grace" '
    function made_by(name) { return (name, value, evidence) in by }
    function made_by_others(name,   i) {
      for (i in names) if (i != name && made_by(i)) return 1
      return 0
    }
    NR == FNR {
      by[$2, $3, $4]; names[$2]; until = $1
      if ($2 != last) { last = $2; runs++; run_of[runs] = $2; run_from[runs] = $1 }
      next
    }
    {
      when = $1; who = $2; status = $3; value = $4; evidence = $5
      while (run < runs && run_from[run + 1] <= when) run++
      decider = run_of[run]; begun = run_from[run]
      if ('"$1"') { if (!count++) first = $0 }
    }
    END { print count + 0 (count && "'"${2:-}"'" ? ", the first: " first : "") }' "$CLUSTER_DIR/history.decisions" "$CLUSTER_DIR/history.answers"
}

# ---- memory

# memory_group NAME BYTES: creates a memory cgroup with this limit. Sets `group`; fails if this machine does not allow it.
memory_group() {
  local top=/sys/fs/cgroup file=memory.max
  if [ ! -e $top/cgroup.controllers ]; then
    top=$top/memory file=memory.limit_in_bytes
  else
    echo +memory >$top/cgroup.subtree_control
  fi 2>/dev/null
  group=$top/wva-$1-$$
  mkdir "$group" 2>/dev/null && echo "$2" >"$group/$file" || return
  [ ! -e "$group/memory.swap.max" ] || echo 0 >"$group/memory.swap.max"
  # shellcheck disable=SC2016 # expanded by the inner shell
  printf '#!/bin/sh\necho $$ >%q/cgroup.procs && exec "$@"\n' "$group" >"$CLUSTER_DIR/in-group"
  chmod +x "$CLUSTER_DIR/in-group"
}

# killed_in_group: the number of OOM kills in the cgroup
killed_in_group() { { cat "$group/memory.events" "$group/memory.oom_control" 2>/dev/null || true; } | awk '$1 == "oom_kill" { print $2 }'; }

# peak_of_group: the cgroup's peak memory in MiB
peak_of_group() { { cat "$group/memory.peak" "$group/memory.max_usage_in_bytes" 2>/dev/null || true; } | awk '{ printf "%d", $1 / 1048576 }'; }
