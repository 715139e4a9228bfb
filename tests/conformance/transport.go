package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync"
	"time"
)

var transportChecks = []Check{
	{
		ID: "transport/certificate", Level: must, Needs: []need{direct},
		Promise: "the CA verifies the certificate for SERVICE.NAMESPACE.svc",
		Why:     "since 1.36 the availability probe verifies it like every request, so a wrong one makes the group unavailable",
		Run:     (*Env).certificate,
	},
	{
		ID: "transport/tls-versions", Level: should, Needs: []need{direct},
		Promise: "TLS 1.2 and 1.3 are supported, 1.1 is rejected",
		Why:     "kube-apiserver offers both, and audits forbid older versions",
		Run:     (*Env).tlsVersions,
	},
	{
		ID: "transport/h2", Level: should, Needs: []need{direct},
		Promise: "HTTP/2 is supported",
		Why:     "kube-apiserver then needs one connection for everything",
		Run:     func(e *Env) (string, error) { return e.protocol(e.client, "HTTP/2.0") },
	},
	{
		ID: "transport/h1", Level: should, Needs: []need{direct},
		Promise: "HTTP/1.1 is supported",
		Why:     "kubelets, curl and load balancers use it",
		Run:     func(e *Env) (string, error) { return e.protocol(e.clientWith(&e.pair, http1), "HTTP/1.1") },
	},
	{
		ID: "transport/keep-alive", Level: should, Needs: []need{direct},
		Promise: "20 requests in a row, including errors, use one connection with HTTP/2 and with HTTP/1.1",
		Why:     "a handshake costs more than an answer",
		Run:     (*Env).keepAlive,
	},
	{
		ID: "transport/parallel", Level: must,
		Promise: "100 concurrent requests are all answered, on as few connections as the client uses",
		Why:     "kube-apiserver sends every HPA's request on one HTTP/2 connection",
		Run:     (*Env).parallel,
	},
	{
		ID: "transport/host", Level: must, Needs: []need{direct},
		Promise: "any Host header is accepted",
		Why:     "kube-apiserver sends the address of a pod or of the Service, with a port",
		Run: func(e *Env) (string, error) {
			hosts := []string{"10.96.0.10:443", "adapter.monitoring.svc:443", "localhost", "[fd00::1]:6443"}
			return strings.Join(hosts, ", "), forEach(hosts, func(host string) error {
				answer, err := e.data(e.selector, func(a *rawRequest) { a.host = host })
				if err == nil {
					_, err = nonEmpty(answer.list())
				}
				return inCase(host, err)
			})
		},
	},
	{
		ID: "transport/abandoned", Level: must,
		Promise: "after 20 clients that disconnect before the answer, the next request is answered",
		Why:     "probes close early and time-outs happen; kube-apiserver's single connection must survive",
		Run:     (*Env).abandoned,
	},
	{
		ID: "transport/garbage", Level: should, Needs: []need{direct},
		Promise: "connections that send plain HTTP, garbage or nothing do not block other requests",
		Why:     "port scanners and health checks of load balancers do this",
		Run:     (*Env).garbage,
	},
	{
		ID: "transport/big-headers", Level: should, Needs: []need{direct},
		Promise: "16 KiB of groups and extras are accepted; 4 MiB are rejected, and the next request is answered",
		Why:     "users of a directory have hundreds of groups; without a bound, anyone can exhaust the memory",
		Run:     (*Env).bigHeaders,
	},
	{
		ID: "transport/body", Level: should, Needs: []need{direct},
		Promise: "a GET with a body is answered",
		Why:     "kube-apiserver forwards bodies",
		Run: func(e *Env) (string, error) {
			answer, err := e.data(e.selector, withBody(`{"kind":"ListOptions"}`))
			if err != nil {
				return "", err
			}
			return nonEmpty(answer.list())
		},
	},
	{
		ID: "transport/head", Level: should, Needs: []need{direct},
		Promise: "HEAD gets headers only, and the connection stays usable",
		Why:     "HTTP libraries and monitoring send it; Go's API servers answer 405",
		Run:     (*Env).head,
	},
	{
		ID: "transport/identity", Level: must,
		Promise: "without Accept-Encoding, answers are not compressed",
		Why:     "the client cannot read it",
		Run: func(e *Env) (string, error) {
			return "none", forEach([]string{e.dataPath(e.metric, e.selector), externalPath}, func(path string) error {
				answer, err := e.get(path)
				if err == nil && answer.Header.Get("Content-Encoding") != "" {
					err = fmt.Errorf("Content-Encoding: %s", answer.Header.Get("Content-Encoding"))
				}
				return err
			})
		},
	},
	{
		ID: "transport/gzip", Level: must,
		Promise: "with Accept-Encoding: gzip, answers are plain or valid gzip",
		Why:     "every Go client sends it",
		Run:     (*Env).gzip,
	},
	{
		ID: "transport/content-length", Level: should,
		Promise: "answers have a Content-Length",
		Why:     "a truncated body is then detected",
		Run: func(e *Env) (string, error) {
			answer, err := e.data(e.selector)
			if err == nil && answer.Header.Get("Content-Length") != strconv.Itoa(len(answer.Body)) {
				err = fmt.Errorf("Content-Length %q of %d bytes", answer.Header.Get("Content-Length"), len(answer.Body))
			}
			return fmt.Sprintf("%d", len(answer.body())), err
		},
	},
	{
		ID: "transport/cache-control", Level: should,
		Promise: "a value has Cache-Control: no-cache, private",
		Why:     "no proxy may cache a number that scales workloads",
		Run: func(e *Env) (string, error) {
			answer, err := e.data(e.selector)
			if err != nil {
				return "", err
			}
			observed := answer.Header.Get("Cache-Control")
			return observed, errorUnless(strings.Contains(observed, "no-cache") || strings.Contains(observed, "no-store"), "Cache-Control %q", observed)
		},
	},
	{
		ID: "transport/audit-id", Level: should, Needs: []need{direct},
		Promise: "the answer has the Audit-Id of the request",
		Why:     "it links the server's log to kube-apiserver's audit log",
		Run: func(e *Env) (string, error) {
			const id = "11111111-2222-3333-4444-555555555555"
			answer, err := e.data(e.selector, header("Audit-Id", id))
			if err != nil {
				return "", err
			}
			return id, errorUnless(answer.Header.Get("Audit-Id") == id, "Audit-Id %q", answer.Header.Get("Audit-Id"))
		},
	},
}

func (e *Env) dial(config *tls.Config) (*tls.ConnectionState, error) {
	connection, err := tls.DialWithDialer(&net.Dialer{Timeout: requestTimeout}, "tcp", strings.TrimPrefix(e.base, "https://"), config)
	if err != nil {
		return nil, err
	}
	defer connection.Close()
	state := connection.ConnectionState()
	return &state, nil
}

func (e *Env) certificate() (string, error) {
	if e.ca == "" {
		return "", skip("needs --ca")
	}
	state, err := e.dial(e.tls.Clone())
	if err != nil {
		return "", err
	}
	leaf := state.PeerCertificates[0]
	if remaining := time.Until(leaf.NotAfter); remaining < time.Hour {
		return "", fmt.Errorf("it expires in %s", remaining.Round(time.Second))
	}
	return fmt.Sprintf("%s until %s", strings.Join(leaf.DNSNames, ", "), leaf.NotAfter.UTC().Format(time.DateOnly)), nil
}

func (e *Env) tlsVersions() (string, error) {
	fixed := func(version uint16) error {
		config := e.tls.Clone()
		config.MinVersion, config.MaxVersion = version, version
		_, err := e.dial(config)
		return err
	}
	if err := forEach([]uint16{tls.VersionTLS12, tls.VersionTLS13}, fixed); err != nil {
		return "", err
	}
	return "1.2, 1.3", errorUnless(fixed(tls.VersionTLS11) != nil, "TLS 1.1 is spoken")
}

func (e *Env) protocol(client *http.Client, name string) (string, error) {
	answer, err := e.data(e.selector, withClient(client))
	if err != nil {
		return "", err
	}
	if _, err := nonEmpty(answer.list()); err != nil {
		return "", err
	}
	return answer.Proto, errorUnless(answer.Proto == name, "%s", answer.Proto)
}

func (e *Env) keepAlive() (string, error) {
	clients := map[string]*http.Client{"HTTP/2": e.clientWith(&e.pair), "HTTP/1.1": e.clientWith(&e.pair, http1)}
	return "one each", forEach([]string{"HTTP/2", "HTTP/1.1"}, func(name string) error {
		fresh := 0
		trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
			if !info.Reused {
				fresh++
			}
		}}
		for i := range 20 {
			path := e.dataPath(e.metric, e.selector)
			if i%4 == 3 {
				path = e.dataPath(unknownMetric, "a=b=c")
			}
			request, err := http.NewRequestWithContext(httptrace.WithClientTrace(context.Background(), trace), http.MethodGet, e.base+path, nil)
			if err != nil {
				return err
			}
			e.who.addHeaders(request.Header)
			response, err := clients[name].Do(request)
			if err != nil {
				return inCase(name, err)
			}
			_, err = io.Copy(io.Discard, response.Body)
			response.Body.Close()
			if err != nil {
				return inCase(name, err)
			}
		}
		return errorUnless(fresh == 1, "%s: %d connections", name, fresh)
	})
}

func (e *Env) parallel() (string, error) {
	var (
		wait   sync.WaitGroup
		began  = time.Now()
		failed [100]error
	)
	for i := range failed {
		wait.Go(func() {
			answer, err := e.data(e.selector)
			if err == nil {
				_, err = nonEmpty(answer.list())
			}
			failed[i] = err
		})
	}
	wait.Wait()
	return "100 in " + milliseconds(time.Since(began)), forEach(failed[:], func(err error) error { return err })
}

func (e *Env) abandoned() (string, error) {
	for i := range 20 {
		// From 0 to some milliseconds: before the handshake, during the request, during the answer.
		withTimeout, cancel := context.WithTimeout(context.Background(), time.Duration(i*i)*50*time.Microsecond)
		request, err := http.NewRequestWithContext(withTimeout, http.MethodGet, e.base+e.dataPath(e.metric, e.selector), nil)
		if err == nil {
			if e.direct {
				e.who.addHeaders(request.Header)
			}
			if response, broken := e.client.Do(request); broken == nil {
				response.Body.Close()
			}
		}
		cancel()
	}
	began := time.Now()
	if _, err := e.value(); err != nil {
		return "", err
	}
	return "the next after " + milliseconds(time.Since(began)), nil
}

func (e *Env) garbage() (string, error) {
	address := strings.TrimPrefix(e.base, "https://")
	payloads := []string{"", "GET / HTTP/1.1\r\nHost: x\r\n\r\n", "\x16\x03\x01", strings.Repeat("\x00", 2000), "SSH-2.0-x\r\n"}
	var open []net.Conn
	defer func() {
		for _, connection := range open {
			connection.Close()
		}
	}()
	for i := range 50 {
		connection, err := net.DialTimeout("tcp", address, requestTimeout)
		if err != nil {
			return "", err
		}
		open = append(open, connection)
		// The server's reaction does not matter, only its effect on other connections.
		_, _ = io.WriteString(connection, payloads[i%len(payloads)])
	}
	began := time.Now()
	answer, err := e.data(e.selector, withClient(e.clientWith(&e.pair)))
	if err == nil {
		_, err = nonEmpty(answer.list())
	}
	if took := time.Since(began); err == nil && took > 2*time.Second {
		err = fmt.Errorf("with 50 of them open, a new connection's answer took %s", milliseconds(took))
	}
	return "50 open; a new connection's answer after " + milliseconds(time.Since(began)), err
}

func (e *Env) bigHeaders() (string, error) {
	big := identity{e.who.user, e.who.groups}
	for i := range 200 {
		big.groups = append(big.groups[:len(big.groups):len(big.groups)], fmt.Sprintf("conformance:a-group-with-a-name-that-is-long-as-directories-have-them:%03d", i))
	}
	answer, err := e.data(e.selector, asIdentity(big))
	if err == nil {
		_, err = nonEmpty(answer.list())
	}
	if err != nil {
		return "", fmt.Errorf("200 groups: %w", err)
	}
	refused := "connection closed"
	answer, err = e.data(e.selector, withClient(e.clientWith(&e.pair)), header("X-Remote-Extra-Big", strings.Repeat("x", 4<<20)))
	if err == nil {
		if answer.Code/100 == 2 {
			return "", fmt.Errorf("4 MiB of headers: HTTP %d", answer.Code)
		}
		refused = fmt.Sprintf("HTTP %d", answer.Code)
	}
	_, err = e.value()
	return "200 groups accepted; 4 MiB: " + refused, err
}

func (e *Env) head() (string, error) {
	client := e.clientWith(&e.pair, http1)
	observed := ""
	return "405, or 200 without a body", forEach([]string{externalPath, e.dataPath(e.metric, e.selector)}, func(path string) error {
		answer, err := e.get(path, method(http.MethodHead), withClient(client))
		if err != nil {
			return inCase(short(path), err)
		}
		observed = fmt.Sprintf("HTTP %d", answer.Code)
		if len(answer.Body) > 0 || answer.Code >= 500 {
			return inCase(short(path), fmt.Errorf("%s", answer))
		}
		after, err := e.data(e.selector, withClient(client))
		if err == nil {
			_, err = nonEmpty(after.list())
		}
		return inCase("after "+observed, err)
	})
}

func (e *Env) gzip() (string, error) {
	observed := ""
	err := forEach([]string{e.dataPath(e.metric, e.selector), externalPath, "/openapi/v3" + externalPath}, func(path string) error {
		answer, err := e.get(path, header("Accept-Encoding", "gzip"))
		if err != nil {
			return inCase(short(path), err)
		}
		encoding := answer.Header.Get("Content-Encoding")
		observed += fmt.Sprintf("%d bytes %s; ", len(answer.Body), orPlain(encoding))
		if encoding == "" {
			return nil
		}
		reader, err := gzip.NewReader(bytes.NewReader(answer.Body))
		if err == nil {
			_, err = io.Copy(io.Discard, reader)
		}
		return inCase(short(path)+" as "+encoding, err)
	})
	return strings.TrimSuffix(observed, "; "), err
}

func orPlain(encoding string) string {
	if encoding == "" {
		return "plain"
	}
	return encoding
}
