package pki

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"
)

const (
	// recheckEvery bounds how often a handshake looks whether the files changed.
	recheckEvery = 10 * time.Second
	// lookingFor is how long it waits for that. A disk may take its time, or not answer: then it goes on with what there is.
	lookingFor = 100 * time.Millisecond
)

// Source is a member's certificate, key and CA. Files that change are read
// again at the next handshake, so that a renewed certificate needs no restart.
// It is safe for concurrent use.
type Source struct {
	files Files // zero for a source in memory
	now   func() time.Time

	// reading is held while files are read.
	reading sync.Mutex

	mu      sync.Mutex
	cur     material
	stamps  [3]stamp
	checked time.Time
	failed  error // why the last reload kept the old material
}

// material is immutable once loaded.
type material struct {
	pair  Pair
	cert  *tls.Certificate // nil: this side has none
	roots *x509.CertPool
	shown [][]byte // the CA's certificates: whoever joins finds the one there that it was told of
}

type stamp struct {
	modified time.Time
	size     int64
}

// Open reads the files. CA must be given; Cert and Key may both be empty for a
// client that authenticates otherwise. A certificate outside of its validity
// gives a *DateError.
func Open(files Files) (*Source, error) {
	s := &Source{files: files, now: time.Now}
	if err := s.Reload(); err != nil {
		return nil, err
	}
	return s, nil
}

// FromPEM is Open for certificates in memory. pair may be zero.
func FromPEM(caPEM []byte, pair Pair) (*Source, error) {
	s := &Source{now: time.Now}
	m, err := parseMaterial(caPEM, pair, Files{CA: "the CA's certificate", Cert: "the certificate"}, s.now())
	if err != nil {
		return nil, err
	}
	s.cur = m
	return s, nil
}

// Reload reads the files now (SIGHUP). On an error the old certificates stay.
func (s *Source) Reload() error {
	s.reading.Lock()
	defer s.reading.Unlock()
	return s.reload()
}

// reload is called with reading held.
func (s *Source) reload() error {
	if s.files == (Files{}) {
		return nil
	}
	began := s.now()
	// The stamps are taken before the read: a write in between is seen by
	// the next look.
	stamps := s.stat()
	m, err := s.read()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.checked, s.failed = began, err
	if err != nil {
		return err
	}
	s.cur, s.stamps = m, stamps
	return nil
}

func (s *Source) read() (material, error) {
	if s.files.CA == "" {
		return material{}, errors.New("TLS needs the file of a CA certificate")
	}
	if (s.files.Cert == "") != (s.files.Key == "") {
		return material{}, errors.New("TLS needs a certificate and its key, and only one of the two is given")
	}
	ca, err := os.ReadFile(s.files.CA)
	if err != nil {
		return material{}, fmt.Errorf("reading the CA's certificate: %w", err)
	}
	var pair Pair
	if s.files.Cert != "" {
		if pair.CertPEM, err = os.ReadFile(s.files.Cert); err != nil {
			return material{}, fmt.Errorf("reading the certificate: %w", err)
		}
		if pair.KeyPEM, err = os.ReadFile(s.files.Key); err != nil {
			return material{}, fmt.Errorf("reading the certificate's key: %w", err)
		}
	}
	return parseMaterial(ca, pair, s.files, s.now())
}

func parseMaterial(ca []byte, pair Pair, names Files, now time.Time) (material, error) {
	m := material{roots: x509.NewCertPool(), shown: parseCerts(ca)}
	if !m.roots.AppendCertsFromPEM(ca) {
		return material{}, fmt.Errorf("no certificate in %s", names.CA)
	}
	if pair.CertPEM == nil && pair.KeyPEM == nil {
		return m, nil
	}
	cert, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
	if err != nil {
		return material{}, fmt.Errorf("certificate %s and its key: %w", names.Cert, err)
	}
	if err := checkDates("certificate "+names.Cert, cert.Leaf, now); err != nil {
		return material{}, err
	}
	m.cert, m.pair = &cert, pair
	return m, nil
}

func (s *Source) stat() (out [3]stamp) {
	for i, f := range []string{s.files.CA, s.files.Cert, s.files.Key} {
		if fi, err := os.Stat(f); err == nil {
			out[i] = stamp{fi.ModTime(), fi.Size()}
		}
	}
	return out
}

// current is the newest material that could be read. While a renewal is half
// written (the key does not fit the certificate), the old one stays in use. Whoever comes while somebody looks at the files has the old one too,
// and so has, after a moment, who had them looked at.
func (s *Source) current() material {
	s.mu.Lock()
	now, cur, stamps, again := s.now(), s.cur, s.stamps, s.failed != nil
	due := s.files != (Files{}) && now.Sub(s.checked) >= recheckEvery
	if due {
		s.checked = now
	}
	s.mu.Unlock()
	if !due || !s.reading.TryLock() {
		return cur
	}
	looked := make(chan struct{})
	go func() {
		defer close(looked)
		defer s.reading.Unlock()
		defer s.broke()
		if again || s.stat() != stamps {
			// Kept in s.failed for Err: a handshake must not fail for it.
			_ = s.reload()
		}
	}()
	late := time.NewTimer(lookingFor)
	defer late.Stop()
	select {
	case <-looked:
	case <-late.C:
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cur
}

// broke takes files that make their reader panic for ones that can not be read.
func (s *Source) broke() {
	if p := recover(); p != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.failed = fmt.Errorf("reading the certificates: it broke, by a mistake of Berth's: %v", p)
	}
}

// Err is why changed files were not taken over, or that the certificate in use
// has meanwhile expired; nil if all is well.
func (s *Source) Err() error {
	m := s.current()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed != nil || m.cert == nil {
		return s.failed
	}
	what := "the certificate in use"
	if s.files.Cert != "" {
		what = "certificate " + s.files.Cert
	}
	return checkDates(what, m.cert.Leaf, s.now())
}

// Leaf is this side's certificate, nil if it has none.
func (s *Source) Leaf() *x509.Certificate {
	if m := s.current(); m.cert != nil {
		return m.cert.Leaf
	}
	return nil
}

// PEM is this side's certificate and its key as they are by now, nil if it has none.
func (s *Source) PEM() (cert, key []byte) {
	m := s.current()
	return m.pair.CertPEM, m.pair.KeyPEM
}

// Identity is whom this side's certificate speaks for.
func (s *Source) Identity() (Identity, error) {
	leaf := s.Leaf()
	if leaf == nil {
		return Identity{}, fmt.Errorf("%w: there is none", ErrIdentity)
	}
	return IdentityOf(leaf)
}

// Verify checks that this side's certificate is signed by its own CA and has a
// usage that peers will ask for. Without it, the mistake would show only as
// failed handshakes at every peer.
func (s *Source) Verify(usage x509.ExtKeyUsage) error {
	m := s.current()
	if m.cert == nil {
		return errors.New("mutual TLS needs a certificate and its key")
	}
	inter := x509.NewCertPool()
	for _, der := range m.cert.Certificate[1:] {
		if c, err := x509.ParseCertificate(der); err == nil {
			inter.AddCert(c)
		}
	}
	_, err := m.cert.Leaf.Verify(x509.VerifyOptions{
		Roots: m.roots, Intermediates: inter, CurrentTime: s.now(), KeyUsages: []x509.ExtKeyUsage{usage},
	})
	if err != nil {
		return fmt.Errorf("certificate %s (%s) is refused by the cluster's CA %s: %w", s.files.Cert, m.cert.Leaf.Subject.CommonName, s.files.CA, err)
	}
	return nil
}

// ServerConfig is the configuration of a listener. auth says whether peers
// must show a certificate (tls.RequireAndVerifyClientCert) or may
// (tls.VerifyClientCertIfGiven). Every handshake uses the newest files.
func (s *Source) ServerConfig(auth tls.ClientAuthType) (*tls.Config, error) {
	if s.current().cert == nil {
		return nil, errors.New("a TLS listener needs a certificate and its key")
	}
	build := func() *tls.Config {
		m := s.current()
		shown := *m.cert
		shown.Certificate = slices.Concat(shown.Certificate, m.shown)
		return &tls.Config{
			MinVersion:   tls.VersionTLS12,
			Certificates: []tls.Certificate{shown},
			ClientAuth:   auth,
			ClientCAs:    m.roots,
		}
	}
	cfg := build()
	cfg.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return build(), nil }
	return cfg, nil
}

// ClientConfig is the configuration of a dialler that expects a server with
// the name serverName (ServerDNSName for one found by gossip). The CA is that of
// now; the certificate is the newest at each handshake.
func (s *Source) ClientConfig(serverName string) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		RootCAs:    s.current().roots,
		ServerName: serverName,
		GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			if m := s.current(); m.cert != nil {
				return m.cert, nil
			}
			return &tls.Certificate{}, nil // none: the server decides
		},
	}
}
