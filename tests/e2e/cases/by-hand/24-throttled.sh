# shellcheck shell=bash
# (24) The API server takes half a second for everything; then it refuses everything that wva asks (429, by its own priority and fairness).
# Whose Lease ran out says no number; nothing shrinks; when it is let in again, all goes on.

stand_at 3
two_instances
eventually 20 "both give the same number" instances_say 3 3
begin_history "wva-0:$wva_port" "wva-1:$second_port"
faulty api_0 delay=500
faulty api_1 delay=500
throughout 25 "every answer of the API server takes a second: the number stays" value_is "==" 3
allow 4
eventually 40 "and follows: 4" value_is "==" 4
faulty api_0
faulty api_1
history_holds "wva-0"

kubectl apply -f - >/dev/null <<YAML
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: PriorityLevelConfiguration
metadata: {name: nothing}
spec: {type: Limited, limited: {nominalConcurrencyShares: 0, lendablePercent: 0, borrowingLimitPercent: 0, limitResponse: {type: Reject}}}
---
apiVersion: flowcontrol.apiserver.k8s.io/v1
kind: FlowSchema
metadata: {name: nothing-for-wva}
spec:
  priorityLevelConfiguration: {name: nothing}
  matchingPrecedence: 1
  rules:
  - subjects: [{kind: ServiceAccount, serviceAccount: {name: "*", namespace: $release_namespace}}]
    resourceRules: [{apiGroups: ["*"], resources: ["*"], verbs: ["*"], clusterScope: true, namespaces: ["*"]}]
YAML
let_in() { kubectl delete flowschema nothing-for-wva --ignore-not-found >/dev/null && kubectl delete prioritylevelconfiguration nothing --ignore-not-found >/dev/null; }
trap let_in EXIT
refused() { kubectl -n "$release_namespace" --as "system:serviceaccount:$release_namespace:wva" get lease "$lease" 2>&1 | grep -i "too many requests"; }
eventually 20 "the API server refuses what wva's account asks" refused
begin_history "wva-0:$wva_port" "wva-1:$second_port"
from=$(calculate "$EPOCHREALTIME + 11")
throughout 40 "429 for 40 s: the replicas are held" replicas_are "==" 4
to=$EPOCHREALTIME
let_in
eventually 60 "let in again: both give the number" instances_say 4 4
history_is_possible
assert_eq "numbers other than 4" "$(answers_that 'status == 200 && value != 4' first)" 0
assert_eq "numbers of its own that wva-0 answered after its Lease had run out" \
  "$(answers_that "status == 200 && who == \"wva-0\" && when > $from && when < $to && made_by(who) && !made_by_others(who)" first)" 0
