package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/berth-dev/berth/access"
	"github.com/berth-dev/berth/atomicfile"
	"github.com/berth-dev/berth/pki"
)

// TLSDir is where an agent without configured certificates keeps the CA that it
// has made itself, and what is from it.
func TLSDir(dataDir string) string { return filepath.Join(dataDir, "tls") }

// administrator is who the certificate beside such a CA is for.
const administrator = "admin"

// secure gives an agent that was given no certificates those of a CA of its own:
// nothing listens that accepts everybody. An agent that joins others cannot make
// them, for they have a CA already.
func (c *Config) secure(ctx context.Context) error {
	if c.DataDir != "" {
		if err := atomicfile.Sweep(TLSDir(c.DataDir)); err != nil {
			return fmt.Errorf("data_dir: remove what was left unfinished beside the certificates: %w", err)
		}
	}
	if c.TLS == nil && c.Server == nil && c.Joining != nil {
		if err := c.joinCluster(ctx); err != nil {
			return err
		}
	}
	if c.TLS != nil {
		if c.EncryptionKey == "" {
			c.Logger.Warn("gossip is not encrypted: whoever reaches its port can pass for a member; set gossip.encryption_key", "address", c.BindAddr)
		}
		return nil
	}
	dir := TLSDir(c.DataDir)
	ca, err := pki.LoadCA(dir)
	if errors.Is(err, fs.ErrNotExist) {
		if ca, err = c.foundCA(dir); err != nil {
			return err
		}
	}
	if err != nil {
		return err
	}
	if err := administratorOf(dir); err != nil {
		return err
	}
	pair, err := ca.Issue(time.Now(), c.ownCertificate())
	if err != nil {
		return err
	}
	if c.TLS, err = pki.FromPEM(ca.CertPEM(), pair); err != nil {
		return err
	}
	c.CA = ca.CertPEM()
	c.Authority = pki.Files{CA: filepath.Join(dir, pki.CAFile), Key: filepath.Join(dir, pki.CAKeyFile)}
	if c.EncryptionKey == "" {
		c.EncryptionKey, err = ownGossipKey(dir)
	}
	return err
}

// foundCA makes the CA of a cluster that this agent founds alone.
func (c *Config) foundCA(dir string) (*pki.CA, error) {
	switch {
	case c.Server == nil:
		return nil, needsCertificate("a worker", "worker", c.Name)
	case len(c.Join) > 0 || c.Server.BootstrapExpect != 1:
		return nil, needsCertificate("a server that is not the only one", "server", c.Name)
	}
	if err := neverServed(c.DataDir, dir); err != nil {
		return nil, err
	}
	if c.EncryptionKey == "" {
		// Before the CA: whoever has a CA and no key has lost it.
		if err := foundGossipKey(dir); err != nil {
			return nil, err
		}
	}
	ca, err := pki.CreateCA(dir, pki.DefaultCAValidity, false)
	if err != nil {
		return nil, err
	}
	c.Logger.Info("no certificates are configured: this agent has made a CA of its own", "directory", dir)
	c.Logger.Info("to use the cluster", "command",
		fmt.Sprintf("berth --addresses %[3]s --ca-file %[1]s/ca.pem --cert-file %[1]s/client-%[2]s.pem --key-file %[1]s/client-%[2]s-key.pem get nodes", dir, administrator, c.apiAddress()))
	c.Logger.Info("to let a worker join, make it a token (berth token create); for another server, make its certificate here, copy it with ca.pem, and name them in its tls block; "+
		"its gossip.encryption_key is what "+gossipKeyFile+" holds", "command", "berth tls server NAME -d "+dir)
	return ca, nil
}

// apiAddress is where commands on this machine reach the API.
func (c *Config) apiAddress() string {
	host, port := c.BindAddr, strconv.Itoa(c.Ports.HTTP)
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
		if ip != nil && ip.To4() == nil {
			host = "::1"
		}
	}
	if c.Ports.HTTP == 0 {
		port = "PORT" // any free one, which is chosen later
	}
	return net.JoinHostPort(host, port)
}

// neverServed refuses another CA where a server has been: those who joined it know the one that it had.
func neverServed(dataDir, dir string) error {
	there, err := os.ReadDir(ServerDir(dataDir))
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(there) == 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("the server's directory: %w", err)
	}
	return fmt.Errorf("%s is missing, and %s has the data of a server: put the directory %s back from a copy, or name the server's certificates in the tls block; "+
		"if the CA is lost for good, make another one (`berth tls ca -d %s`), which nobody who joined the old one trusts", filepath.Join(dir, pki.CAFile), ServerDir(dataDir), dir, dir)
}

// administratorOf makes the certificate of an administrator beside the CA, unless
// it is there.
func administratorOf(dir string) error {
	_, err := pki.Issue(dir, pki.Request{
		Kind: pki.Client, Name: administrator, Groups: []string{access.Masters}, Validity: pki.DefaultCAValidity,
	}, false)
	if errors.Is(err, pki.ErrExists) {
		return nil
	}
	return err
}

// errNoCertificate is wrapped by the refusal of an agent that was given no
// certificate and cannot make itself one.
var errNoCertificate = errors.New("a certificate of the cluster's CA is missing")

func needsCertificate(what, kind, name string) error {
	return fmt.Errorf("%w: %s cannot make itself one; give a worker a token (`berth token create`), or run `berth tls %s %s -d DIR` where the CA is (DIR is data_dir/tls of the first "+
		"server if that has made it), copy the certificate, its key and ca.pem here, and name them in the tls block", errNoCertificate, what, kind, name)
}

// ownCertificate is made anew at each start, and as good as the CA.
func (c *Config) ownCertificate() pki.Request {
	r := pki.Request{Kind: pki.Server, Name: c.Name, Validity: pki.DefaultCAValidity}
	for _, host := range []string{c.AdvertiseAddr, c.BindAddr} {
		if ip := net.ParseIP(host); ip != nil && !ip.IsUnspecified() {
			r.IPs = append(r.IPs, ip)
		} else if ip == nil && host != "" {
			r.DNSNames = append(r.DNSNames, host)
		}
	}
	return r
}
