// Conformance checks a server of external.metrics.k8s.io, custom.metrics.k8s.io or metrics.k8s.io against what Kubernetes and its clients
// need. It uses the real clients of k8s.io/metrics and client-go wherever one exists.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
)

const usage = `Checks a server of external.metrics.k8s.io, custom.metrics.k8s.io or metrics.k8s.io against what Kubernetes needs.

  conformance --kubeconfig FILE SERIES [flags]      through the API server that the metrics server is registered with
  conformance --server https://HOST:PORT --ca FILE --server-name SERVICE.NAMESPACE.svc --proxy-cert FILE --proxy-key FILE SERIES [flags]
                                                    directly, in the role of that API server

Run both. Direct access checks more (identities, connections, discovery before it is merged); access through the API server is what users have.
SERIES names what has a value now, as an HPA in namespace NS would read it. Each part has its own, and runs if it is given:

  --namespace NS --metric M --selector S            external metrics: one series of M; with it also the checks of connections and identities
  --namespace NS --custom-object KIND/NAME --custom-metric M
                                                    custom metrics; --custom-root-object, --custom-namespace-metric for other scopes
  --namespace NS --pod POD --node NODE              resource metrics, what kubectl top shows
  --reference-server URL | --reference-kubeconfig FILE
                                                    a second server with the same rules: reads the same from both, and compares the answers

One line per check:   ok|FAIL|skip  ID  level  promise  (observed)
Levels:  must    a violation breaks the contract of Kubernetes or a client
         should  what a careful server does; a server that fails only these works
Exit status: 0 no check failed, 1 a check failed, 2 invalid flags or no server. It only reads, unless --create-namespace is given.

Examples
  conformance --kubeconfig ~/.kube/config --namespace llm --metric queue_depth --selector app=chat
  conformance --kubeconfig ~/.kube/config --namespace llm --pod web-0 --pod-selector app=web --node worker-1
  conformance --server https://127.0.0.1:6443 --ca ca.crt --server-name adapter.monitoring.svc --proxy-cert front-proxy-client.crt \
    --proxy-key front-proxy-client.key --namespace llm --metric queue_depth --selector app=chat --run '^selector/'
  conformance --list                  every check with the reason why it matters

The front-proxy certificate is the client certificate of the API server's --proxy-client-cert-file (kubeadm: /etc/kubernetes/pki).

Flags
`

// Options are the flags: the server and the series under test.
type Options struct {
	kubeconfig, server, serverName, ca     string
	proxyCert, proxyKey, user, groups      string
	clientCert, clientKey, token           string
	namespace, metric                      string
	selector, multiSelector                string
	customObject, customMetric, customList string
	customRootObject, customRootMetric     string
	customNamespaceMetric                  string
	pod, podSelector, node                 string
	referenceServer, referenceServerName   string
	referenceCA, referenceKubeconfig       string
	referenceNamespaces, referenceIgnore   string
	tolerance                              float64
	output, run                            string
	list, createNamespace, mustOnly        bool
}

func flags(o *Options, out io.Writer) *flag.FlagSet {
	f := flag.NewFlagSet("conformance", flag.ContinueOnError)
	f.SetOutput(out)
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig `FILE` of an administrator; reads go through this API server")
	f.StringVar(&o.server, "server", "", "`URL` of the metrics server itself")
	f.StringVar(&o.serverName, "server-name", "", "the `NAME` its certificate must have, <service>.<namespace>.svc; default: the host of --server")
	f.StringVar(&o.ca, "ca", "", "`FILE` with the CA of its certificate: the APIService's caBundle. Without it the certificate is not verified, and a check reports that")
	f.StringVar(&o.proxyCert, "proxy-cert", "", "front-proxy client certificate, a `FILE`")
	f.StringVar(&o.proxyKey, "proxy-key", "", "its key, a `FILE`")
	f.StringVar(&o.user, "user", "system:serviceaccount:kube-system:horizontal-pod-autoscaler", "the caller in direct mode: X-Remote-User")
	f.StringVar(&o.groups, "groups", "system:serviceaccounts,system:serviceaccounts:kube-system,system:authenticated", "the groups of --user, separated by commas: X-Remote-Group")
	f.StringVar(&o.clientCert, "client-cert", "", "`FILE`: a client certificate of the cluster's client CA, of a user who may not read the metric (direct mode)")
	f.StringVar(&o.clientKey, "client-key", "", "its key, a `FILE`")
	f.StringVar(&o.token, "token", "", "a bearer `TOKEN` of a user who may read the metric (direct mode)")
	f.StringVar(&o.namespace, "namespace", "default", "namespace `NS` of the metric")
	f.StringVar(&o.metric, "metric", "", "`NAME` of a metric that has a value")
	f.StringVar(&o.selector, "selector", "", "label `SELECTOR` that selects one series of it")
	f.StringVar(&o.multiSelector, "multi-selector", "", "label `SELECTOR` that selects several series of it")
	f.StringVar(&o.customObject, "custom-object", "", "`KIND[.GROUP]/NAME` of an object in NS with a custom metric, for example Deployment.apps/web")
	f.StringVar(&o.customMetric, "custom-metric", "", "`NAME` of that custom metric; default: --metric")
	f.StringVar(&o.customList, "custom-selector", "", "label `SELECTOR` of objects of that kind which have the metric")
	f.StringVar(&o.customRootObject, "custom-root-object", "", "`KIND[.GROUP]/NAME` of an object without a namespace that has a custom metric, for example Node/worker-1")
	f.StringVar(&o.customRootMetric, "custom-root-metric", "", "`NAME` of that custom metric; default: --custom-metric")
	f.StringVar(&o.customNamespaceMetric, "custom-namespace-metric", "", "`NAME` of a custom metric of the namespace NS itself")
	f.StringVar(&o.pod, "pod", "", "`NAME` of a pod in NS with resource metrics")
	f.StringVar(&o.podSelector, "pod-selector", "", "label `SELECTOR` of pods in NS with resource metrics, --pod among them")
	f.StringVar(&o.node, "node", "", "`NAME` of a node with resource metrics")
	f.StringVar(&o.referenceServer, "reference-server", "", "`URL` of a second server, to compare with: every difference is a failed check of rules/")
	f.StringVar(&o.referenceServerName, "reference-server-name", "", "the `NAME` its certificate must have; default: the host of --reference-server")
	f.StringVar(&o.referenceCA, "reference-ca", "", "`FILE` with the CA of its certificate. Without it the certificate is not verified")
	f.StringVar(&o.referenceKubeconfig, "reference-kubeconfig", "", "kubeconfig `FILE` of a second API server, which has the server to compare with")
	f.StringVar(&o.referenceNamespaces, "reference-namespaces", "", "`NS,NS` whose metrics are compared; default: --namespace")
	f.StringVar(&o.referenceIgnore, "reference-ignore", "", "metrics whose name matches this `REGEXP` are not compared")
	f.Float64Var(&o.tolerance, "tolerance", 0.02, "`PART` by which compared values may differ beyond what they change by between two reads")
	f.StringVar(&o.output, "output", "text", "`FORMAT`: text, json or markdown")
	f.StringVar(&o.run, "run", "", "only checks whose ID matches this `REGEXP`")
	f.BoolVar(&o.list, "list", false, "print the checks and why they matter, without running them")
	f.BoolVar(&o.mustOnly, "must", false, "only checks of the level must")
	f.BoolVar(&o.createNamespace, "create-namespace", false, "with --kubeconfig: create an empty namespace and check that it can be deleted")
	f.Usage = func() {
		fmt.Fprint(out, usage)
		f.PrintDefaults()
	}
	return f
}

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

// run is the program; it returns the exit status that --help describes.
func run(arguments []string, out, problems io.Writer) int {
	var o Options
	f := flags(&o, problems)
	for _, argument := range arguments {
		if argument == "-h" || argument == "-help" || argument == "--help" {
			f.SetOutput(out)
			fmt.Fprint(out, usage)
			f.PrintDefaults()
			return 0
		}
	}
	if f.Parse(arguments) != nil {
		return 2
	}
	reportProblem := func(err error) int {
		fmt.Fprintf(problems, "conformance: %v\n", err)
		return 2
	}
	if f.NArg() > 0 {
		return reportProblem(fmt.Errorf("unexpected argument %q; see --help", f.Arg(0)))
	}
	checks, err := selectChecks(&o)
	if err != nil {
		return reportProblem(err)
	}
	if o.list {
		printList(out, checks)
		return 0
	}
	render, known := renderers[o.output]
	if !known {
		return reportProblem(fmt.Errorf("--output %s: must be text, json or markdown", o.output))
	}
	env, err := newEnv(&o)
	if err != nil {
		return reportProblem(err)
	}
	report := runAll(env, checks, render.each(out))
	render.end(out, report)
	if report.Failed > 0 {
		return 1
	}
	return 0
}

// selectChecks returns the checks that match --run and --must, in the order of the run.
func selectChecks(o *Options) ([]Check, error) {
	wanted, err := regexp.Compile(o.run)
	if err != nil {
		return nil, fmt.Errorf("--run: %w", err)
	}
	var remaining []Check
	for _, check := range allChecks() {
		if wanted.MatchString(check.ID) && (!o.mustOnly || check.Level == must) {
			remaining = append(remaining, check)
		}
	}
	if len(remaining) == 0 {
		return nil, fmt.Errorf("no check has an ID that matches --run %q; --list shows them", o.run)
	}
	return remaining, nil
}

func (o *Options) validate() error {
	var missing []string
	if o.metric == "" && o.customObject == "" && o.customRootObject == "" && o.customNamespaceMetric == "" && o.pod == "" && o.node == "" && !o.compares() {
		missing = append(missing, "one of --metric, --custom-object, --custom-root-object, --custom-namespace-metric, --pod, --node, --reference-server and --reference-kubeconfig")
	}
	switch {
	case o.kubeconfig == "" && o.server == "":
		missing = append(missing, "--kubeconfig or --server")
	case o.kubeconfig != "" && o.server != "":
		return fmt.Errorf("--kubeconfig uses an API server, --server direct access: give only one of them")
	case o.referenceKubeconfig != "" && o.referenceServer != "":
		return fmt.Errorf("--reference-kubeconfig uses an API server, --reference-server direct access: give only one of them")
	case (o.server != "" || o.referenceServer != "") && (o.proxyCert == "" || o.proxyKey == ""):
		missing = append(missing, "--proxy-cert and --proxy-key")
	}
	if len(missing) > 0 {
		return fmt.Errorf("missing: %s; see --help", strings.Join(missing, ", "))
	}
	for flag, object := range map[string]string{"custom-object": o.customObject, "custom-root-object": o.customRootObject} {
		if kind, name, _ := strings.Cut(object, "/"); object != "" && (kind == "" || name == "") {
			return fmt.Errorf("--%s %s: must be KIND[.GROUP]/NAME, for example Deployment.apps/web", flag, object)
		}
	}
	if o.customObject != "" && o.customMetric == "" && o.metric == "" {
		return fmt.Errorf("--custom-object needs --custom-metric, or --metric of the same name")
	}
	if o.customRootObject != "" && o.customRootMetric == "" && o.customMetric == "" && o.metric == "" {
		return fmt.Errorf("--custom-root-object needs --custom-root-metric")
	}
	return nil
}

// compares is true if there is a second server.
func (o *Options) compares() bool { return o.referenceServer != "" || o.referenceKubeconfig != "" }
