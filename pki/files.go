package pki

import (
	"bytes"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/berth-dev/berth/atomicfile"
)

// The CA's files in its directory.
const (
	CAFile    = "ca.pem"
	CAKeyFile = "ca-key.pem"
)

// ErrExists is wrapped by the error that refuses to overwrite a key.
var ErrExists = errors.New("a key is already there")

// Files names the PEM files of one member.
type Files struct {
	CA   string
	Cert string
	Key  string
}

// CreateCA makes a CA and writes it into dir, which is made with mode 0700.
// It refuses with ErrExists if dir has a CA's key, unless force is set: every
// certificate of an overwritten CA becomes worthless.
func CreateCA(dir string, validity time.Duration, force bool) (*CA, error) {
	ca, err := NewCA(time.Now(), validity)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making the CA's directory: %w", err)
	}
	err = writePair(filepath.Join(dir, CAFile), filepath.Join(dir, CAKeyFile), ca.pair, force)
	if err != nil {
		return nil, fmt.Errorf("writing the CA: %w", err)
	}
	return ca, nil
}

// LoadCA reads the CA that CreateCA has written into dir. The error wraps fs.ErrNotExist if there is nothing of one.
func LoadCA(dir string) (*CA, error) {
	certFile, keyFile := filepath.Join(dir, CAFile), filepath.Join(dir, CAKeyFile)
	cert, noCert := os.ReadFile(certFile)
	key, noKey := os.ReadFile(keyFile)
	switch {
	case errors.Is(noCert, fs.ErrNotExist) && errors.Is(noKey, fs.ErrNotExist):
		return nil, fmt.Errorf("no CA in %s (make one with `berth tls ca`): %w", dir, noCert)
	case errors.Is(noCert, fs.ErrNotExist) || errors.Is(noKey, fs.ErrNotExist):
		return nil, halfOfCA(certFile, keyFile, noCert != nil)
	case noCert != nil:
		return nil, fmt.Errorf("reading the CA: %w", noCert)
	case noKey != nil:
		return nil, fmt.Errorf("reading the CA's key: %w", noKey)
	}
	ca, err := ParseCA(Pair{CertPEM: cert, KeyPEM: key})
	if err == nil {
		err = ca.cert.CheckSignatureFrom(ca.cert) // it has signed itself: nothing of it is damaged
	}
	if err != nil {
		return nil, fmt.Errorf("CA in %s: %w", dir, err)
	}
	return ca, nil
}

// halfOfCA says what to do where one file of the two is missing: another CA would be made in its place, whom nobody trusts.
func halfOfCA(certFile, keyFile string, noCert bool) error {
	missing, there := keyFile, certFile
	if noCert {
		missing, there = certFile, keyFile
	}
	return fmt.Errorf("%s is missing, and %s is there: put it back from a copy; if no certificate of this CA is in use yet, remove %s", missing, there, there)
}

// OpenAuthority reads a CA from the files that a server was given to sign with: CA and Key.
// The file of the CA has one certificate, so that it is clear whose key it is.
func OpenAuthority(files Files) (*CA, error) {
	cert, err := os.ReadFile(files.CA)
	if err != nil {
		return nil, fmt.Errorf("reading the CA: %w", err)
	}
	if _, rest := pem.Decode(cert); bytes.Contains(rest, []byte("-----BEGIN "+certBlock)) {
		return nil, fmt.Errorf("%s has more than one certificate: it is not clear which of them the CA's key %s belongs to", files.CA, files.Key)
	}
	key, err := os.ReadFile(files.Key)
	if err != nil {
		return nil, fmt.Errorf("reading the CA's key: %w", err)
	}
	ca, err := ParseCA(Pair{CertPEM: cert, KeyPEM: key})
	if err != nil {
		return nil, fmt.Errorf("the CA %s and its key %s: %w", files.CA, files.Key, err)
	}
	return ca, nil
}

// Issue signs a certificate with the CA in dir and writes it beside it, as
// KIND-NAME.pem and KIND-NAME-key.pem. It refuses with ErrExists if that key is
// there, unless force is set.
func Issue(dir string, r Request, force bool) (Files, error) {
	ca, err := LoadCA(dir)
	if err != nil {
		return Files{}, err
	}
	pair, err := ca.Issue(time.Now(), r)
	if err != nil {
		return Files{}, err
	}
	// A user's name may hold what a file's name may not.
	base := filepath.Join(dir, string(r.Kind)+"-"+url.PathEscape(r.Name))
	files := Files{CA: filepath.Join(dir, CAFile), Cert: base + ".pem", Key: base + "-key.pem"}
	if err := writePair(files.Cert, files.Key, pair, force); err != nil {
		return Files{}, fmt.Errorf("writing the certificate of %s %s: %w", r.Kind, r.Name, err)
	}
	return files, nil
}

// writePair writes the key first: a certificate without its key would be
// overwritten next time, a key without its certificate is refused.
func writePair(certFile, keyFile string, p Pair, force bool) error {
	if !force {
		// O_EXCL decides, not a look beforehand: two commands may run at once.
		f, err := os.OpenFile(keyFile, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, fs.ErrExist) {
			return fmt.Errorf("%w: %s", ErrExists, keyFile)
		}
		if err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	if err := atomicfile.Write(keyFile, p.KeyPEM, 0o600); err != nil {
		return err
	}
	return atomicfile.Write(certFile, p.CertPEM, 0o644)
}
