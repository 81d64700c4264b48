package connect

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"syscall"
	"time"
)

// Attempt is one server that could not be reached, and why.
type Attempt struct {
	Server string
	Err    error
}

// trust is what the sentences about certificates have to name.
type trust struct {
	caFile, certFile, serverName string
}

// NoServerError: none of the servers could be reached; nothing was done.
type NoServerError struct {
	Attempts []Attempt
	trust    trust
	at       time.Time
}

func (e *NoServerError) Error() string {
	// A certificate that is refused is the more telling mistake: that server is up.
	for _, a := range e.Attempts {
		if s := e.trust.explain(a); s != "" {
			return s
		}
	}
	servers, reasons := make([]string, len(e.Attempts)), make([]string, len(e.Attempts))
	same := true
	for i, a := range e.Attempts {
		servers[i], reasons[i] = a.Server, reason(a.Err)
		same = same && reasons[i] == reasons[0]
	}
	if same && len(reasons) > 0 {
		return fmt.Sprintf("no Berth server answers at %s: %s", strings.Join(servers, ", "), reasons[0])
	}
	for i := range servers {
		servers[i] += " (" + reasons[i] + ")"
	}
	return "no Berth server answers at " + strings.Join(servers, ", ")
}

// Unwrap gives the servers' own errors.
func (e *NoServerError) Unwrap() []error {
	var errs []error
	for _, a := range e.Attempts {
		errs = append(errs, a.Err)
	}
	return errs
}

// UnknownOutcomeError: the connection broke after the request was sent, so the
// server may or may not have done what it says.
type UnknownOutcomeError struct {
	Server string
	Err    error
}

func (e *UnknownOutcomeError) Error() string {
	return fmt.Sprintf("the server at %s broke off before it answered (%s); the request may or may not have been carried out", e.Server, reason(e.Err))
}

func (e *UnknownOutcomeError) Unwrap() error { return e.Err }

// isTLSError: a server was reached, and it or its certificate was not accepted.
func isTLSError(err error) bool {
	var (
		verification *tls.CertificateVerificationError
		unknownCA    x509.UnknownAuthorityError
		invalid      x509.CertificateInvalidError
		hostname     x509.HostnameError
		record       tls.RecordHeaderError
		alert        tls.AlertError
	)
	if refusal(err) != nil || errors.Is(err, errSpeaksTLS) || errors.Is(err, errSpeaksRPC) {
		return true
	}
	return errors.As(err, &verification) || errors.As(err, &unknownCA) || errors.As(err, &invalid) ||
		errors.As(err, &hostname) || errors.As(err, &record) || errors.As(err, &alert) || errors.Is(err, http.ErrSchemeMismatch)
}

// explain says what a certificate lacks; empty if the attempt failed otherwise.
func (t trust) explain(a Attempt) string {
	var (
		unknownCA x509.UnknownAuthorityError
		invalid   x509.CertificateInvalidError
		hostname  x509.HostnameError
		record    tls.RecordHeaderError
		alert     tls.AlertError
	)
	refused := refusal(a.Err)
	switch {
	case refused != nil && t.certFile != "":
		return fmt.Sprintf("the server at %s does not accept your certificate %s (%v); is it one of another cluster?", a.Server, t.certFile, refused)
	case refused != nil:
		return fmt.Sprintf("the server at %s wants a certificate (%v); set cert_file and key_file", a.Server, refused)
	case errors.Is(a.Err, errSpeaksTLS):
		return fmt.Sprintf("the server at %s speaks TLS; write https:// before its address, or nothing", a.Server)
	case errors.Is(a.Err, errSpeaksRPC):
		return fmt.Sprintf("%s is not the API: that is where servers and workers talk to each other (ports.rpc); the API's port is ports.http, 7640 without a word", a.Server)
	case errors.As(a.Err, &unknownCA):
		if t.caFile == "" {
			return fmt.Sprintf("the certificate of the server at %s is from a CA that this machine does not know; set ca_file", a.Server)
		}
		return fmt.Sprintf("the certificate of the server at %s is not from the CA in %s; is this another cluster?", a.Server, t.caFile)
	case errors.As(a.Err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Sprintf("the certificate of the server at %s is valid from %s to %s, and it is %s",
			a.Server, date(invalid.Cert.NotBefore), date(invalid.Cert.NotAfter), date(time.Now()))
	case errors.As(a.Err, &invalid):
		return fmt.Sprintf("the certificate of the server at %s is not good: %v", a.Server, invalid)
	case errors.As(a.Err, &hostname):
		return fmt.Sprintf("the certificate of the server at %s is not one for the name %q; is this a Berth server?", a.Server, hostname.Host)
	case errors.As(a.Err, &alert) && t.certFile != "":
		return fmt.Sprintf("the server at %s refuses the certificate in %s: %v", a.Server, t.certFile, alert)
	case errors.As(a.Err, &alert):
		return fmt.Sprintf("the server at %s refuses the connection: %v; set cert_file and key_file", a.Server, alert)
	case errors.As(a.Err, &record) || errors.Is(a.Err, http.ErrSchemeMismatch):
		return fmt.Sprintf("the server at %s does not speak TLS; write http:// before its address if that is meant", a.Server)
	}
	return ""
}

func date(t time.Time) string { return t.UTC().Format("2006-01-02 15:04 MST") }

// reason is the short form of a failed connection.
func reason(err error) string {
	var (
		errno   syscall.Errno
		dns     *net.DNSError
		timeout net.Error
	)
	switch {
	case errors.As(err, &dns):
		return "no such host"
	case errors.As(err, &errno):
		return errno.Error()
	case errors.As(err, &timeout) && timeout.Timeout():
		return "no answer in time"
	}
	return err.Error()
}
