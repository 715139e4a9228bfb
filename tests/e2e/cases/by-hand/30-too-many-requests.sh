# shellcheck shell=bash
# (30) The API server is overloaded and answers 429 with Retry-After: for 45 s to all requests of both instances except the Lease and reviews, then
# for 30 s to all requests. The number is held and answered while the Lease is valid, no instance retries in a hot loop, and afterwards changes
# made meanwhile are seen.

account=$(kubectl -n "$release_namespace" get deployment wva -o jsonpath='{.spec.template.spec.serviceAccountName}')

# refuse GROUP...: API Priority and Fairness rejects requests of wva's account to these API groups. Their priority level has no seats, but
# admits one request while it is empty: that is `occupant`, whose body never ends.
refuse() {
  local groups
  groups=$(printf '"%s",' "$@")
  kubectl apply -f - >/dev/null <<YAML
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: PriorityLevelConfiguration
metadata: {name: wva-refused}
spec:
  type: Limited
  limited: {nominalConcurrencyShares: 0, lendablePercent: 0, borrowingLimitPercent: 0, limitResponse: {type: Reject}}
---
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
metadata: {name: wva-refused}
spec:
  matchingPrecedence: 50
  priorityLevelConfiguration: {name: wva-refused}
  rules:
  - subjects: [{kind: ServiceAccount, serviceAccount: {name: $account, namespace: $release_namespace}}]
    resourceRules: [{verbs: ["*"], apiGroups: [${groups%,}], resources: ["*"], namespaces: ["*"], clusterScope: true}]
YAML
}
occupy() {
  local token
  token=$(kubectl create token "$account" -n "$release_namespace")
  # shellcheck disable=SC2016 # expanded by the inner shell
  spawn occupant bash -c 'while true; do curl --silent --output /dev/null --cacert "$1" --header "Authorization: Bearer $2" \
    --header "Content-Type: application/json" --request POST --upload-file - "$3" < <(exec sleep 50); done' \
    occupant "$CLUSTER_DIR/pki/ca.crt" "$token" "$API_URL/api/v1/namespaces/$release_namespace/configmaps"
  eventually 10 "the API server rejects requests of wva's account" answers_429 "$token"
}
answers_429() {
  local code
  code=$(curl --silent --output /dev/null --write-out '%{http_code}' --cacert "$CLUSTER_DIR/pki/ca.crt" --header "Authorization: Bearer $1" \
    "$API_URL/api/v1/namespaces/$release_namespace/configmaps")
  echo "$code"
  [ "$code" = 429 ]
}
accept_again() {
  stop occupant
  kubectl delete flowschema,prioritylevelconfiguration wva-refused --ignore-not-found >/dev/null
}
trap accept_again EXIT

# refused: the number of rejected requests so far
refused() {
  kubectl get --raw /metrics |
    awk '/^apiserver_flowcontrol_rejected_requests_total\{flow_schema="wva-refused"/ { n += $2 } END { printf "%d", n }'
}

# cut_connections: forces every watch to restart
cut_connections() {
  local proxy
  for proxy in api_0 api_1; do inject_fault "$proxy" answers=closed && inject_fault "$proxy"; done
}
# number_or_none N: the number is N, or there is none
number_or_none() { local n; n=$(value) || { echo "no number"; return 0; }; is "$n == $1"; }

hold_at 3
two_instances
eventually 20 "both answer the same number" instance_values_are 3 3
begin_history "wva-0:$wva_port" "wva-1:$second_port"
sleep 2
refuse "" apps llmd.ai apiregistration.k8s.io authentication.k8s.io events.k8s.io
occupy
cut_connections
before=$(refused) began=$EPOCHREALTIME
allow 4
throughout 45 "all requests but the Lease and reviews rejected: the number is held and answered" value_is "==" 3
holder_is wva-0 >/dev/null || failed "$(holder) took the Lease"
rate=$(calculate "($(refused) - $before) / $(seconds_since "$began")")
is "$rate <= 12" >"$CLUSTER_DIR/comparison" || failed "a hot loop: $rate requests/s were rejected"
passed "rejected: $rate requests/s of both instances"
accept_again
eventually 30 "overload ends: the maximum that was raised meanwhile takes effect" value_is "==" 4
eventually 30 "the HPA follows" ready_are "==" 4
history_holds wva-0

refuse "*"
occupy
cut_connections
before=$(refused) began=$EPOCHREALTIME
throughout 30 "all requests rejected, including the Lease: 4 or no number" number_or_none 4
eventually 0 "the HPA keeps its replicas" replicas_are "==" 4
rate=$(calculate "($(refused) - $before) / $(seconds_since "$began")")
is "$rate <= 12" >"$CLUSTER_DIR/comparison" || failed "a hot loop: $rate requests/s were rejected"
passed "rejected: $rate requests/s of both instances"
accept_again
eventually 30 "overload ends: 4 again" value_is "==" 4
allow 3
eventually 30 "changes are seen: maximum 3" value_is "==" 3
