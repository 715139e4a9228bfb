package main

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// The longest that any request may take: the API server in front cuts at 60 s, the probe gives up at 5 s.
const patience = 20 * time.Second

// identity is who the front proxy says is asking.
type identity struct {
	user   string
	groups []string
}

// The callers inside kube-apiserver, as they introduce themselves.
var (
	prober    = identity{"system:kube-aggregator", []string{"system:masters"}}
	fallback  = identity{"system:kube-aggregator", nil} // legacy discovery: no group at all
	openAPI   = identity{"system:aggregator", nil}
	powerless = identity{"conformance:nobody", []string{"system:authenticated"}}
)

// Env is the server under test and the ways to ask it.
type Env struct {
	Options
	direct bool
	base   string
	who    identity     // direct mode: the default caller
	config *rest.Config // for the real clients, as the default caller
	client *http.Client // raw requests, HTTP/2 where offered, with the certificate of the front proxy or of the kubeconfig
	tls    *tls.Config  // direct mode: trusts --ca, presents nothing
	pair   tls.Certificate
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
	env := &Env{Options: *o, direct: o.server != ""}
	var err error
	if env.direct {
		err = env.connectDirect()
	} else {
		err = env.connectCluster()
	}
	if err != nil {
		return nil, err
	}
	// Nothing there, or nothing that may be asked: say so once, not a hundred times.
	if _, err := env.get(externalPath); err != nil {
		return nil, fmt.Errorf("nobody answers: %w", err)
	}
	return env, nil
}

func (e *Env) connectCluster() error {
	config, err := clientcmd.BuildConfigFromFlags("", e.kubeconfig)
	if err != nil {
		return fmt.Errorf("--kubeconfig: %w", err)
	}
	config.QPS = -1
	config.Timeout = patience
	// A client is one of many in a cluster: warnings are data here, not lines on the terminal.
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
		Host: e.base, QPS: -1, Timeout: patience, WarningHandler: rest.NoWarnings{},
		TLSClientConfig: rest.TLSClientConfig{
			Insecure: e.ca == "", ServerName: e.serverName, CAFile: e.ca, CertFile: e.proxyCert, KeyFile: e.proxyKey,
		},
		WrapTransport: func(next http.RoundTripper) http.RoundTripper { return introduced{e.who, next} },
	}
	return nil
}

// introduced adds to every request who the front proxy says is asking.
type introduced struct {
	who  identity
	next http.RoundTripper
}

func (i introduced) RoundTrip(request *http.Request) (*http.Response, error) {
	request = request.Clone(request.Context())
	i.who.introduce(request.Header)
	return i.next.RoundTrip(request)
}

func (i identity) introduce(header http.Header) {
	if i.user != "" {
		header.Set("X-Remote-User", i.user)
	}
	for _, group := range i.groups {
		header.Add("X-Remote-Group", group)
	}
}

// clientWith is a client with connections of its own that presents this certificate, or none. Direct mode.
func (e *Env) clientWith(certificate *tls.Certificate, edits ...func(*http.Transport)) *http.Client {
	transport := &http.Transport{
		TLSClientConfig: e.tls.Clone(), ForceAttemptHTTP2: true, DisableCompression: true,
		TLSHandshakeTimeout: patience, MaxIdleConnsPerHost: 4,
	}
	if certificate != nil {
		// Always presented, whatever issuers the server hints at: what it makes of a wrong one is the question.
		transport.TLSClientConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return certificate, nil
		}
	}
	for _, edit := range edits {
		edit(transport)
	}
	return &http.Client{
		Transport: transport, Timeout: patience,
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
