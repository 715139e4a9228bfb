# shellcheck shell=bash
# What goes wrong in the cases about faults, and the history of all answers that is kept meanwhile. Sourced by actors.sh.

# ---- a network that fails on demand: PROXY between an instance of wva and what it talks to

# start_proxy NAME ADDRESS: passes connections on to ADDRESS. Sets NAME_url (where it listens) and NAME_orders (where faults are ordered).
start_proxy() {
  local name=$1 to=$2 listen="" orders=""
  choose_port listen
  choose_port orders
  spawn "proxy-$name" "$PROXY" --listen "127.0.0.1:$listen" --to "${to#http*://}" --control "127.0.0.1:$orders"
  await_http "proxy-$name" 10 "http://127.0.0.1:$orders/"
  printf -v "${name}_url" %s "127.0.0.1:$listen"
  printf -v "${name}_orders" %s "http://127.0.0.1:$orders"
}

# faulty NAME [FAULT...]: such as up=hold down=hold delay=300 answers=failed; none: the network is as it should be again.
faulty() {
  local name=${1}_orders query
  query=$(IFS='&' && echo "${*:2}")
  curl --fail --silent --show-error --output /dev/null -X POST "${!name}/faults?$query"
}

# ---- two instances, each of which has its own way to the API server

# two_instances: afresh, behind a balancer. wva-0 decides.
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
  point_at "$balancer_port"
  eventually 60 "two instances behind a balancer: the API server reaches them" is_available
  trust_wva
  echo "      (two instances after $(seconds_since "$began") s)"
}
# trust_wva: ask_instance knows the CA that the instances have now.
trust_wva() { kubectl get apiservice v1beta1.external.metrics.k8s.io -o jsonpath='{.spec.caBundle}' | base64 -d >"$BED/wva-ca.crt"; }
holder_is() { local now; now=$(holder) && echo "$now" && [[ $now == "$1"* ]]; }

# What a case of faults leaves is taken away.
end_faults() {
  local file
  end_history
  signal_to wva-0 CONT 2>/dev/null || true
  for file in "$BED"/pids/proxy-*; do
    [ ! -e "$file" ] || { stop "${file##*/}" && stop wva-0; } # an instance that went through it has lost its way
  done
}

# signal_to NAME SIGNAL: to a process of the bed, alone
signal_to() {
  local pid
  read -r pid _ 2>/dev/null <"$BED/pids/$1" || return
  kill -s "$2" "$pid"
}

# ---- the history: every answer and every evaluation of every instance, asked four times a second

# begin_history NAME:PORT...: or NAME:ADDRESS:PORT. HISTORY_SECONDS: how long at most, an hour or this.
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
  rm -f "$BED/history.jsonl"
  spawn history "$HISTORY" "${instances[@]}" --server-name "wva.$release_namespace.svc" --ca "$BED/wva-ca.crt" \
    --cert "$BED/pki/front-proxy-client.crt" --key "$BED/pki/front-proxy-client.key" --seconds "${HISTORY_SECONDS:-3600}" --out "$BED/history.jsonl"
}
end_history() { stop history; }

# read_history: what was answered and what was decided, a line each: when, who, the status, the number and the second of its evidence. What
# is decided is answered up to a second before it is listed: it counts from then on. What was listed at the first look is left out when it is
# of an earlier term than the newest: who decided then did so before the history began.
read_history() {
  end_history
  jq -r --arg began "$history_began" 'select(.kind | . != "evaluation" and . != "began") | .numbers["llm/llama"] as $number
    | "\(.answered + ($began | tonumber)) \(.instance) \(if $number then 200 else .status // 0 end) \($number.value // "-") \($number.evidence // "-")"' \
    "$BED/history.jsonl" | sort -n >"$BED/history.answers"
  jq -rs --arg began "$history_began" 'map(select(.kind == "evaluation"))
    | (map(select(.since == null).term.epoch) | max) as $term_at_first
    | .[] | select(.since != null or .term.epoch == $term_at_first) | (.numbers["llm/llama"] // empty) as $number
    | "\((.since // .answered) - 1 + ($began | tonumber)) \(.instance) \($number.value) \($number.evidence)"' "$BED/history.jsonl" | sort -n >"$BED/history.decisions"
}

# history_is_possible: what the checker of histories says
history_is_possible() {
  local seen
  read_history
  seen=$("$HISTORY" --check "$BED/history.jsonl") || failed "what was answered can't be: $seen"
  passed "the history holds: $seen"
}

# history_holds DECIDERS [LAPSED FROM TO]: the history ends, and is what it may be. DECIDERS: who decided, one after the other, as a pattern.
# LAPSED: an instance whose Lease had run out by its own clock between these moments.
history_holds() {
  local lapsed=${2:-nobody} from=${3:-0} to=${4:-0} seen
  history_is_possible
  seen=$(awk '$2 != last { printf "%s%s", separator, $2; separator = ", "; last = $2 }' "$BED/history.decisions")
  # shellcheck disable=SC2053 # a pattern
  [[ $seen == $1 ]] || failed "who decided: $seen, expected $1"
  passed "who decided, by $(wc -l <"$BED/history.decisions") evaluations: $seen"
  is "$(answers_that 'status == 200') >= 20" >/dev/null || failed "too few numbers among the answers to say anything: see $BED/history.answers"
  assert_eq "numbers of an earlier term, $grace s after the next one's first, of $(answers_that 'status == 200')" \
    "$(answers_that 'status == 200 && decider && when > begun + grace && when < until && !made_by(decider)' first)" 0
  [ "$lapsed" = nobody ] || assert_eq "numbers of its own that $lapsed answered after its Lease had run out" \
    "$(answers_that "status == 200 && who == \"$lapsed\" && when > $from && when < $to && made_by(who) && !made_by_others(who)" first)" 0
}
# Seconds until everybody answers what a new holder has decided: it writes within 2 s, and a read waits for it 1 s.
grace=5

# answers_that CONDITION [first]: how many answers are so, and the first of them. `until` is when the last decision was read: an answer after
# it may be of one that was not.
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
    END { print count + 0 (count && "'"${2:-}"'" ? ", the first: " first : "") }' "$BED/history.decisions" "$BED/history.answers"
}

# ---- memory

# memory_group NAME BYTES: a group of processes that may have so much memory together. Sets `group`; false when this machine has none for us.
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
  printf '#!/bin/sh\necho $$ >%q/cgroup.procs && exec "$@"\n' "$group" >"$BED/in-group"
  chmod +x "$BED/in-group"
}

# killed_in_group: how many the kernel has killed in it for want of memory
killed_in_group() { { cat "$group/memory.events" "$group/memory.oom_control" 2>/dev/null || true; } | awk '$1 == "oom_kill" { print $2 }'; }

# most_in_group: the most that it had at a time, in MiB
most_in_group() { { cat "$group/memory.peak" "$group/memory.max_usage_in_bytes" 2>/dev/null || true; } | awk '{ printf "%d", $1 / 1048576 }'; }
