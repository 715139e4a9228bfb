package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// The time-out of any request. The API server in front cuts at 60 s, and the probe gives up at 5 s.
const requestTimeout = 20 * time.Second

// identity is the caller that the front proxy reports.
type identity struct {
	user   string
	groups []string
}

// The callers inside kube-apiserver, with their identities.
var (
	prober       = identity{"system:kube-aggregator", []string{"system:masters"}}
	fallback     = identity{"system:kube-aggregator", nil} // legacy discovery: no group at all
	openAPI      = identity{"system:aggregator", nil}
	unprivileged = identity{"conformance:nobody", []string{"system:authenticated"}}
)

// Env is the server under test and the ways to access it.
type Env struct {
	Options
	direct bool
	base   string
	who    identity     // direct mode: the default caller
	config *rest.Config // for the real clients, as the default caller
	client *http.Client // raw requests, HTTP/2 where offered, with the certificate of the front proxy or of the kubeconfig
	tls    *tls.Config  // direct mode: trusts --ca, without a client certificate
	pair   tls.Certificate
	// The server to compare with, or nil, and the metrics that are not compared.
	reference *Env
	ignored   *regexp.Regexp
	pause     time.Duration
}

func (e *Env) mode() string {
	if e.direct {
		return "direct"
	}
	return "aggregated"
}

func newEnv(o *Options) (*Env, error) {
	if err := o.validate(); err != nil {
		return nil, err
	}
	env := &Env{Options: *o, direct: o.server != "", pause: comparisonPause}
	var err error
	if env.direct {
		err = env.connectDirect()
	} else {
		err = env.connectCluster()
	}
	if err != nil {
		return nil, err
	}
	// If the server cannot be reached, report it once, not for every check.
	if _, err := env.get(env.groupPath()); err != nil {
		return nil, fmt.Errorf("no answer: %w", err)
	}
	if o.compares() {
		second := *o
		second.server, second.serverName, second.ca = o.referenceServer, o.referenceServerName, o.referenceCA
		second.kubeconfig, second.referenceServer, second.referenceKubeconfig = o.referenceKubeconfig, "", ""
		second.pod = orText(second.pod, "-") // an Env needs something to read; this one is only read by comparisons
		if env.reference, err = newEnv(&second); err != nil {
			return nil, fmt.Errorf("the server to compare with: %w", err)
		}
		if env.referenceIgnore != "" {
			if env.ignored, err = regexp.Compile(env.referenceIgnore); err != nil {
				return nil, fmt.Errorf("--reference-ignore: %w", err)
			}
			env.reference.ignored = env.ignored
		}
	}
	return env, nil
}

// groupPath is the path of a group that the flags are about.
func (e *Env) groupPath() string {
	switch {
	case e.metric == "" && (e.pod != "" || e.node != ""):
		return resourcePath
	case e.metric == "" && (e.customObject != "" || e.customRootObject != "" || e.customNamespaceMetric != ""):
		return customPath("v1beta2")
	}
	return externalPath
}

func orText(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

func (e *Env) connectCluster() error {
	config, err := clientcmd.BuildConfigFromFlags("", e.kubeconfig)
	if err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	config.QPS = -1
	config.Timeout = requestTimeout
	// Do not print warnings on the terminal.
	config.WarningHandler = rest.NoWarnings{}
	e.config = config
	e.base = strings.TrimSuffix(config.Host, "/")
	e.client, err = rest.HTTPClientFor(config)
	return err
}

func (e *Env) connectDirect() error {
	address, err := url.Parse(e.server)
	if err != nil || address.Scheme != "https" || address.Host == "" {
		return fmt.Errorf("--server %s: must be https://HOST:PORT", e.server)
	}
	e.base = "https://" + address.Host
	e.who = identity{e.user, split(e.groups)}
	e.tls = &tls.Config{ServerName: e.serverName, InsecureSkipVerify: e.ca == "", MinVersion: tls.VersionTLS12}
	if e.ca != "" {
		pem, err := os.ReadFile(e.ca)
		if err != nil {
			return fmt.Errorf("--ca: %w", err)
		}
		e.tls.RootCAs = x509.NewCertPool()
		if !e.tls.RootCAs.AppendCertsFromPEM(pem) {
			return fmt.Errorf("--ca %s: holds no certificate", e.ca)
		}
	}
	if e.pair, err = tls.LoadX509KeyPair(e.proxyCert, e.proxyKey); err != nil {
		return fmt.Errorf("--proxy-cert, --proxy-key: %w", err)
	}
	e.client = e.clientWith(&e.pair)
	e.config = &rest.Config{
		Host: e.base, QPS: -1, Timeout: requestTimeout, WarningHandler: rest.NoWarnings{},
		TLSClientConfig: rest.TLSClientConfig{
			Insecure: e.ca == "", ServerName: e.serverName, CAFile: e.ca, CertFile: e.proxyCert, KeyFile: e.proxyKey,
		},
		WrapTransport: identify(e.who),
	}
	return nil
}

// privileged is the same server for an administrator. With a kubeconfig, that is its user already.
func (e *Env) privileged() *Env {
	if !e.direct {
		return e
	}
	admin := *e
	admin.who = superuser
	admin.config = rest.CopyConfig(e.config)
	admin.config.WrapTransport = identify(superuser)
	return &admin
}

func identify(who identity) func(http.RoundTripper) http.RoundTripper {
	return func(next http.RoundTripper) http.RoundTripper { return identifyingTransport{who, next} }
}

// identifyingTransport adds the caller's headers to every request, as the front proxy does.
type identifyingTransport struct {
	who  identity
	next http.RoundTripper
}

func (i identifyingTransport) RoundTrip(request *http.Request) (*http.Response, error) {
	request = request.Clone(request.Context())
	i.who.addHeaders(request.Header)
	return i.next.RoundTrip(request)
}

func (i identity) addHeaders(header http.Header) {
	if i.user != "" {
		header.Set("X-Remote-User", i.user)
	}
	for _, group := range i.groups {
		header.Add("X-Remote-Group", group)
	}
}

// clientWith is a client with connections of its own that presents this certificate, or none. Direct mode.
func (e *Env) clientWith(certificate *tls.Certificate, options ...func(*http.Transport)) *http.Client {
	transport := &http.Transport{
		TLSClientConfig: e.tls.Clone(), ForceAttemptHTTP2: true, DisableCompression: true,
		TLSHandshakeTimeout: requestTimeout, MaxIdleConnsPerHost: 4,
	}
	if certificate != nil {
		// Always presented, whatever issuers the server hints at: what it makes of a wrong one is the question.
		transport.TLSClientConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return certificate, nil
		}
	}
	for _, requestOption := range options {
		requestOption(transport)
	}
	return &http.Client{
		Transport: transport, Timeout: requestTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// http1 makes a transport speak HTTP/1.1 only.
func http1(transport *http.Transport) {
	transport.ForceAttemptHTTP2 = false
	transport.TLSNextProto = map[string]func(string, *tls.Conn) http.RoundTripper{}
	transport.TLSClientConfig.NextProtos = []string{"http/1.1"}
}

func split(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
}
