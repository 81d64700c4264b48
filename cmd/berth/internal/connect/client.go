package connect

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/berth-dev/berth/config"
	"github.com/berth-dev/berth/pki"
)

// dialTimeout is how long a server may take to accept a connection, and then to
// shake hands, before the next one is tried.
const dialTimeout = 3 * time.Second

// Client reaches the cluster that the command line's settings name. It implements
// cli-runtime's RESTClientGetter. Settings are read when they are first needed,
// so that commands that need no cluster work without any.
type Client struct {
	flags  *config.Flags
	getenv func(string) string
	// Notice is where it is told that a command waits; nil: nowhere.
	Notice io.Writer
	// Timeout bounds each request, as clientcmd.ParseTimeout reads it; empty: nothing does.
	Timeout string
	// As is whom requests are made as; empty: as the user.
	As     rest.ImpersonationConfig
	learnt answers

	once sync.Once
	conn *config.Connection
	rest *rest.Config
	err  error

	discoveryOnce sync.Once
	discovery     discovery.CachedDiscoveryInterface
	discoveryErr  error
}

// New returns a client for flags, which may still be filled in until the client
// is first used.
func New(flags *config.Flags, getenv func(string) string) *Client {
	return &Client{flags: flags, getenv: getenv}
}

// leaderPatience is how long a command waits for the servers to have a leader,
// unless it is told to go on.
const leaderPatience = 10 * time.Second

// forAsLongAsItTakes is how long discovery may take where servers are waited for.
const forAsLongAsItTakes = 365 * 24 * time.Hour

// patience is how long servers without a leader are asked again; 0 is for ever.
func (c *Client) patience() time.Duration {
	if c.flags.KeepTrying {
		return 0
	}
	return leaderPatience
}

// tell says at once why a command waits.
func (c *Client) tell(text string) {
	if c.Notice == nil {
		return
	}
	how := fmt.Sprintf("trying again for %s (--keep-trying goes on)", leaderPatience)
	if c.flags.KeepTrying {
		how = "trying again"
	}
	fmt.Fprintf(c.Notice, "waiting: %s; %s\n", text, how)
}

// Lost is why the last request reached no server; nil if it reached one.
func (c *Client) Lost() *NoServerError { return c.learnt.lost.Load() }

// Connection returns the settings.
func (c *Client) Connection() (*config.Connection, error) {
	c.resolve()
	return c.conn, c.err
}

func (c *Client) resolve() {
	c.once.Do(func() {
		c.learnt.insists = c.flags.KeepTrying
		c.conn, c.err = config.Resolve(*c.flags, c.getenv)
		if c.err == nil {
			c.rest, c.err = c.restConfig()
		}
	})
}

// ToRESTConfig returns a copy that the caller may change.
func (c *Client) ToRESTConfig() (*rest.Config, error) {
	c.resolve()
	if c.err != nil {
		return nil, c.err
	}
	return rest.CopyConfig(c.rest), nil
}

func (c *Client) restConfig() (*rest.Config, error) {
	conn := c.conn
	name := conn.ServerName
	if name == "" && conn.CAFile != "" {
		// Every server's certificate has this name and no other certificate may, so
		// it holds at whatever address a server is.
		name = pki.ServerDNSName
	}
	if err := checkCertificate(conn); err != nil {
		return nil, err
	}
	if err := checkCA(conn.CAFile); err != nil {
		return nil, err
	}
	t := trust{caFile: conn.CAFile, certFile: conn.CertFile, serverName: name}
	return c.configFor(t, conn.Servers, &c.learnt)
}

// configFor is the configuration that goes to the given servers; learnt is where it
// is kept who of them answers.
func (c *Client) configFor(t trust, servers []string, learnt *answers) (*rest.Config, error) {
	timeout, err := clientcmd.ParseTimeout(cmp.Or(c.Timeout, "0"))
	if err != nil || timeout < 0 {
		return nil, fmt.Errorf("--request-timeout %q is not a time, such as 10s; 0 is for ever", c.Timeout)
	}
	targets := make([]*url.URL, len(servers))
	for i, s := range servers {
		u, err := url.Parse(s)
		if err != nil {
			return nil, fmt.Errorf("reading the address of a server: %w", err)
		}
		targets[i] = u
	}
	cfg := &rest.Config{
		Host:        servers[0],
		BearerToken: c.conn.Token,
		Impersonate: c.As,
		TLSClientConfig: rest.TLSClientConfig{
			CAFile: t.caFile, CertFile: t.certFile, KeyFile: c.conn.KeyFile, ServerName: t.serverName,
			Insecure: c.conn.SkipVerify,
		},
		Dial:    (&net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}).DialContext,
		Timeout: timeout, QPS: -1, // the server's flow control is what counts
	}
	cfg.Wrap(func(rt http.RoundTripper) http.RoundTripper {
		hurry(rt)
		return &failover{next: rt, targets: targets, trust: t, answers: learnt, patience: c.patience(), notice: c.tell}
	})
	return cfg, nil
}

// checkCertificate finds a client certificate that a server would only answer
// with "unauthorized".
func checkCertificate(conn *config.Connection) error {
	if conn.CertFile == "" && conn.KeyFile == "" {
		return nil
	}
	if conn.CertFile == "" || conn.KeyFile == "" {
		return errors.New("a client certificate needs both cert_file and key_file; one is missing")
	}
	pair, err := tls.LoadX509KeyPair(conn.CertFile, conn.KeyFile)
	var missing *fs.PathError // names the file
	if err != nil && !errors.As(err, &missing) {
		return fmt.Errorf("reading the client certificate %s and its key %s: %w", conn.CertFile, conn.KeyFile, err)
	}
	if err != nil {
		return fmt.Errorf("reading the client certificate: %w", err)
	}
	cert, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		return fmt.Errorf("reading the client certificate %s: %w", conn.CertFile, err)
	}
	now := time.Now()
	if now.After(cert.NotAfter) {
		return fmt.Errorf("the client certificate %s expired on %s; make a new one with `berth tls client`", conn.CertFile, date(cert.NotAfter))
	}
	if now.Before(cert.NotBefore) {
		return fmt.Errorf("the client certificate %s is valid only from %s on; is this machine's clock right?", conn.CertFile, date(cert.NotBefore))
	}
	return nil
}

func checkCA(file string) error {
	if file == "" {
		return nil
	}
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("reading the CA: %w", err)
	}
	if !x509.NewCertPool().AppendCertsFromPEM(data) {
		return fmt.Errorf("the CA file %s has no certificate in it", file)
	}
	return nil
}

// ToDiscoveryClient implements RESTClientGetter. What it finds is kept for the
// life of the command only.
func (c *Client) ToDiscoveryClient() (discovery.CachedDiscoveryInterface, error) {
	c.discoveryOnce.Do(func() {
		cfg, err := c.ToRESTConfig()
		if err != nil {
			c.discoveryErr = err
			return
		}
		if c.flags.KeepTrying && cfg.Timeout == 0 {
			cfg.Timeout = forAsLongAsItTakes // or discovery gives up after half a minute
		}
		d, err := discovery.NewDiscoveryClientForConfig(cfg)
		if err != nil {
			c.discoveryErr = fmt.Errorf("preparing discovery: %w", err)
			return
		}
		c.discovery = inOrder{memory.NewMemCacheClient(d)}
	})
	return c.discovery, c.discoveryErr
}

// inOrder lists groups and their resources as the server does. A client that is told of all in one answer lists them in the order of a
// map; this one asks what that answer has left for one group after the other.
type inOrder struct {
	discovery.CachedDiscoveryInterface
}

// ServerGroupsAndResources implements discovery.ServerResourcesInterface.
func (d inOrder) ServerGroupsAndResources() ([]*metav1.APIGroup, []*metav1.APIResourceList, error) {
	return discovery.ServerGroupsAndResources(d)
}

// ServerPreferredResources implements discovery.ServerResourcesInterface.
func (d inOrder) ServerPreferredResources() ([]*metav1.APIResourceList, error) {
	return discovery.ServerPreferredResources(d)
}

// ServerPreferredNamespacedResources implements discovery.ServerResourcesInterface.
func (d inOrder) ServerPreferredNamespacedResources() ([]*metav1.APIResourceList, error) {
	return discovery.ServerPreferredNamespacedResources(d)
}

// ToRESTMapper implements RESTClientGetter.
func (c *Client) ToRESTMapper() (meta.RESTMapper, error) {
	d, err := c.ToDiscoveryClient()
	if err != nil {
		return nil, err
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(d)
	return restmapper.NewShortcutExpander(mapper, d, nil), nil
}

// ToRawKubeConfigLoader implements RESTClientGetter.
func (c *Client) ToRawKubeConfigLoader() clientcmd.ClientConfig {
	c.resolve()
	if c.err != nil {
		return &loader{client: c}
	}
	return &loader{client: c, kubeconfig: clientcmd.NewDefaultClientConfig(c.kubeconfig(), &clientcmd.ConfigOverrides{})}
}

// kubeconfig writes the settings as kubectl knows them. Of the servers it can
// name only the first; the REST configuration has them all.
func (c *Client) kubeconfig() clientcmdapi.Config {
	const name = "berth"
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters[name] = &clientcmdapi.Cluster{
		Server: c.conn.Servers[0], CertificateAuthority: c.conn.CAFile, TLSServerName: c.rest.ServerName,
		InsecureSkipTLSVerify: c.conn.SkipVerify,
	}
	cfg.AuthInfos[name] = &clientcmdapi.AuthInfo{
		ClientCertificate: c.conn.CertFile, ClientKey: c.conn.KeyFile, Token: c.conn.Token,
	}
	cfg.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name, Namespace: c.conn.Namespace}
	cfg.CurrentContext = name
	return *cfg
}

// loader is a kubeconfig whose client configuration knows all servers. Without
// settings it answers everything with the reason.
type loader struct {
	kubeconfig clientcmd.ClientConfig
	client     *Client
}

func (l *loader) RawConfig() (clientcmdapi.Config, error) {
	if l.client.err != nil {
		return clientcmdapi.Config{}, l.client.err
	}
	return l.kubeconfig.RawConfig()
}

func (l *loader) ClientConfig() (*rest.Config, error) { return l.client.ToRESTConfig() }

// Namespace tells as well whether the namespace was given on the command line,
// so that a manifest of another one is refused.
func (l *loader) Namespace() (string, bool, error) {
	if l.client.err != nil {
		return "", false, l.client.err
	}
	return l.client.conn.Namespace, l.client.flags.Namespace != "", nil
}

func (l *loader) ConfigAccess() clientcmd.ConfigAccess {
	return clientcmd.NewDefaultPathOptions()
}
