// Conformance holds a server of external.metrics.k8s.io (and custom.metrics.k8s.io, where it is served) to what Kubernetes and its
// clients need of it. It asks with the real clients of k8s.io/metrics and client-go wherever one exists.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"regexp"
	"strings"
)

const usage = `Holds a server of external.metrics.k8s.io, and of custom.metrics.k8s.io where it is served, to what Kubernetes needs of it.

  conformance --kubeconfig FILE --namespace NS --metric M --selector S [flags]      through the API server that the metrics server is registered with
  conformance --server https://HOST:PORT --ca FILE --server-name SERVICE.NAMESPACE.svc
              --proxy-cert FILE --proxy-key FILE --namespace NS --metric M --selector S [flags]      directly, playing that API server

Run both. Directly sees more (identities, connections, discovery before it is merged); through the API server is what users have.
M and S name one series that has a value now: what an HPA in namespace NS would ask for.

One line a check:   ok|FAIL|skip  ID  level  what is promised  (what was seen)
Levels:  must    the contract of Kubernetes or a client breaks without it
         should  what a careful server does; a server that fails only these works
Exit status: 0 nothing failed, 1 a check failed, 2 wrong flags or nobody there. It only reads, unless --create-namespace is given.

Examples
  conformance --kubeconfig ~/.kube/config --namespace llm --metric queue_depth --selector app=chat
  conformance --server https://127.0.0.1:6443 --ca ca.crt --server-name adapter.monitoring.svc --proxy-cert front-proxy-client.crt \
    --proxy-key front-proxy-client.key --namespace llm --metric queue_depth --selector app=chat --run '^selector/'
  conformance --list                  every check with the sentence why it matters

The front-proxy certificate is the client certificate of the API server's --proxy-client-cert-file (kubeadm: /etc/kubernetes/pki).

Flags
`

// Options is what the user says about the server and the series.
type Options struct {
	kubeconfig, server, serverName, ca     string
	proxyCert, proxyKey, user, groups      string
	clientCert, clientKey, token           string
	namespace, metric                      string
	selector, multiSelector                string
	customObject, customMetric, customList string
	output, run                            string
	list, createNamespace, mustOnly        bool
}

func flags(o *Options, out io.Writer) *flag.FlagSet {
	f := flag.NewFlagSet("conformance", flag.ContinueOnError)
	f.SetOutput(out)
	f.StringVar(&o.kubeconfig, "kubeconfig", "", "kubeconfig `FILE` of an administrator; the metrics server is asked through this API server")
	f.StringVar(&o.server, "server", "", "`URL` of the metrics server itself")
	f.StringVar(&o.serverName, "server-name", "", "the `NAME` its certificate must have, <service>.<namespace>.svc; default: the host of --server")
	f.StringVar(&o.ca, "ca", "", "`FILE` with the CA of its certificate: the APIService's caBundle. Without it nothing is verified, and a check says so")
	f.StringVar(&o.proxyCert, "proxy-cert", "", "front-proxy client certificate, a `FILE`")
	f.StringVar(&o.proxyKey, "proxy-key", "", "its key, a `FILE`")
	f.StringVar(&o.user, "user", "system:serviceaccount:kube-system:horizontal-pod-autoscaler", "who asks, direct mode: X-Remote-User")
	f.StringVar(&o.groups, "groups", "system:serviceaccounts,system:serviceaccounts:kube-system,system:authenticated", "the groups of --user, with commas: X-Remote-Group")
	f.StringVar(&o.clientCert, "client-cert", "", "`FILE`: a client certificate of the cluster's client CA, of a user who may not read the metric (direct mode)")
	f.StringVar(&o.clientKey, "client-key", "", "its key, a `FILE`")
	f.StringVar(&o.token, "token", "", "a bearer `TOKEN` of a user who may read the metric (direct mode)")
	f.StringVar(&o.namespace, "namespace", "default", "namespace `NS` that the metric is asked for in")
	f.StringVar(&o.metric, "metric", "", "`NAME` of a metric that has a value")
	f.StringVar(&o.selector, "selector", "", "label `SELECTOR` that selects one series of it")
	f.StringVar(&o.multiSelector, "multi-selector", "", "label `SELECTOR` that selects several series of it")
	f.StringVar(&o.customObject, "custom-object", "", "`KIND[.GROUP]/NAME` of an object in NS with a custom metric, for example Deployment.apps/web")
	f.StringVar(&o.customMetric, "custom-metric", "", "`NAME` of that custom metric; default: --metric")
	f.StringVar(&o.customList, "custom-selector", "", "label `SELECTOR` of objects of that kind which have the metric")
	f.StringVar(&o.output, "output", "text", "`FORMAT`: text, json or markdown")
	f.StringVar(&o.run, "run", "", "only checks whose ID matches this `REGEXP`")
	f.BoolVar(&o.list, "list", false, "print the checks and why they matter; asks nothing")
	f.BoolVar(&o.mustOnly, "must", false, "only checks of the level must")
	f.BoolVar(&o.createNamespace, "create-namespace", false, "with --kubeconfig: create an empty namespace and see that it can be deleted")
	f.Usage = func() {
		fmt.Fprint(out, usage)
		f.PrintDefaults()
	}
	return f
}

func main() {
	os.Exit(start(os.Args[1:], os.Stdout, os.Stderr))
}

// start is the program: 0, 1 or 2, as --help says.
func start(arguments []string, out, complaints io.Writer) int {
	var o Options
	f := flags(&o, complaints)
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
	complain := func(err error) int {
		fmt.Fprintf(complaints, "conformance: %v\n", err)
		return 2
	}
	if f.NArg() > 0 {
		return complain(fmt.Errorf("unexpected argument %q; see --help", f.Arg(0)))
	}
	checks, err := chosen(&o)
	if err != nil {
		return complain(err)
	}
	if o.list {
		printList(out, checks)
		return 0
	}
	render, known := renderers[o.output]
	if !known {
		return complain(fmt.Errorf("--output %s: must be text, json or markdown", o.output))
	}
	env, err := newEnv(&o)
	if err != nil {
		return complain(err)
	}
	report := runAll(env, checks, render.each(out))
	render.end(out, report)
	if report.Failed > 0 {
		return 1
	}
	return 0
}

// chosen is the checks that --run and --must leave, in the order they are run.
func chosen(o *Options) ([]Check, error) {
	wanted, err := regexp.Compile(o.run)
	if err != nil {
		return nil, fmt.Errorf("--run: %w", err)
	}
	var left []Check
	for _, check := range allChecks() {
		if wanted.MatchString(check.ID) && (!o.mustOnly || check.Level == must) {
			left = append(left, check)
		}
	}
	if len(left) == 0 {
		return nil, fmt.Errorf("no check has an ID that matches --run %q; --list shows them", o.run)
	}
	return left, nil
}

func (o *Options) validate() error {
	var missing []string
	if o.metric == "" {
		missing = append(missing, "--metric")
	}
	switch {
	case o.kubeconfig == "" && o.server == "":
		missing = append(missing, "--kubeconfig or --server")
	case o.kubeconfig != "" && o.server != "":
		return fmt.Errorf("--kubeconfig asks through an API server, --server directly: give one of them")
	case o.server != "" && (o.proxyCert == "" || o.proxyKey == ""):
		missing = append(missing, "--proxy-cert and --proxy-key")
	}
	if len(missing) > 0 {
		return fmt.Errorf("missing: %s; see --help", strings.Join(missing, ", "))
	}
	return nil
}
