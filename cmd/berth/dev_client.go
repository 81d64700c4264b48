package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/berth-dev/berth/agent"
	"github.com/berth-dev/berth/atomicfile"
	"github.com/berth-dev/berth/config"
	"github.com/berth-dev/berth/pki"
)

// devContext is the name of a development cluster's context, for berth and for kubectl. Others that run at the same time have a number behind it.
const devContext = "berth-dev"

// answersWithin is how long a server of this machine may take to answer.
const answersWithin = time.Second

// devClient is how commands find a development cluster.
type devClient struct {
	app     *app
	dir     string // of the cluster
	file    string // that commands read their contexts from
	context string
	before  string // the current context of then

	kubeconfig, kubeconfigBefore              string // the file for kubectl, and its current context of then
	hasKubeconfig, hasContext, madeKubeconfig bool   // it has written the one, the other; the one was not there
}

// newDevClient chooses the context of a cluster: one that nobody has, or whose cluster does not run any more.
func (a *app) newDevClient(dir, kubeconfig string) (*devClient, error) {
	file, err := a.cliFile()
	if err != nil {
		return nil, err
	}
	cli, err := config.LoadCLI(file)
	if err != nil {
		return nil, err
	}
	d := &devClient{app: a, dir: dir, file: file, context: devContext, before: cli.CurrentContext, kubeconfig: kubeconfig}
	if kubeconfig == "" {
		d.kubeconfig = d.path("kubeconfig")
	}
	for n := 2; d.isAnothers(cli); n++ {
		d.context = fmt.Sprint(devContext, "-", n)
	}
	return d, nil
}

// isAnothers says whether the context is that of another cluster, which runs.
func (d *devClient) isAnothers(cli *config.CLI) bool {
	i := slices.IndexFunc(cli.Contexts, func(c *config.Context) bool { return c.Name == d.context })
	if i < 0 {
		return false
	}
	c := cli.Contexts[i]
	if c.TLS != nil && string(c.TLS.CAFile) == d.path("ca.pem") {
		return false
	}
	return slices.ContainsFunc(c.Addresses, func(address string) bool {
		u, err := url.Parse(address)
		if err != nil {
			return false
		}
		conn, err := net.DialTimeout("tcp", u.Host, answersWithin)
		if err != nil {
			return false
		}
		_ = conn.Close() // nothing was sent
		return true
	})
}

func (d *devClient) path(name string) string { return filepath.Join(d.dir, name) }

// announce writes what clients need, and tells how to go on.
func (d *devClient) announce(cluster *agent.Dev, f devFlags, took time.Duration) error {
	pair, err := cluster.Client()
	if err != nil {
		return err
	}
	files := map[string][]byte{"ca.pem": cluster.CA(), "client.pem": pair.CertPEM, "client-key.pem": pair.KeyPEM}
	for name, content := range files {
		if err := os.WriteFile(d.path(name), content, 0o600); err != nil {
			return fmt.Errorf("writing the client's certificate: %w", err)
		}
	}
	if err := d.writeKubeconfig(cluster, pair, !f.noSwitch); err != nil {
		return err
	}
	d.hasKubeconfig = true
	if err := d.writeContext(cluster, !f.noSwitch); err != nil {
		return err
	}
	d.hasContext = true
	d.tell(cluster, took, f)
	return nil
}

// forget removes the contexts of a cluster that is thrown away. What was the current one before is that again.
func (d *devClient) forget() {
	left := func(file string, err error) {
		if err != nil {
			fmt.Fprintf(d.app.errOut, "the context %s is left in %s: %v\n", d.context, file, err)
		}
	}
	if d.hasKubeconfig {
		left(d.kubeconfig, d.forgetKubeconfig())
	}
	if d.hasContext {
		left(d.file, config.RemoveContext(d.file, d.context, d.before))
	}
}

// cliFile is the file that commands read their contexts from.
func (a *app) cliFile() (string, error) {
	if a.flags.CLIConfig != "" {
		return a.flags.CLIConfig, nil
	}
	return config.CLIFile(a.getenv)
}

// writeContext writes the command line's context, into the file that commands read.
func (d *devClient) writeContext(cluster *agent.Dev, current bool) error {
	ctx := config.Context{Name: d.context, TLS: &config.ClientTLS{
		CAFile: config.Path(d.path("ca.pem")), CertFile: config.Path(d.path("client.pem")), KeyFile: config.Path(d.path("client-key.pem")),
	}}
	for _, s := range cluster.Servers() {
		ctx.Addresses = append(ctx.Addresses, "https://"+s.HTTPAddr())
	}
	return config.WriteContext(d.file, ctx, current)
}

// writeKubeconfig puts the cluster into a kubeconfig. All other clusters in it stay, and nobody but its owner reads it from now on.
func (d *devClient) writeKubeconfig(cluster *agent.Dev, pair pki.Pair, current bool) error {
	c, err := clientcmd.LoadFromFile(d.kubeconfig)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		c, d.madeKubeconfig = clientcmdapi.NewConfig(), true
	case err != nil:
		return fmt.Errorf("reading the kubeconfig %s: %w", d.kubeconfig, err)
	}
	d.kubeconfigBefore = c.CurrentContext
	c.Clusters[d.context] = &clientcmdapi.Cluster{
		Server: "https://" + cluster.Servers()[0].HTTPAddr(), CertificateAuthorityData: cluster.CA(),
	}
	c.AuthInfos[d.context] = &clientcmdapi.AuthInfo{ClientCertificateData: pair.CertPEM, ClientKeyData: pair.KeyPEM}
	c.Contexts[d.context] = &clientcmdapi.Context{Cluster: d.context, AuthInfo: d.context, Namespace: "default"}
	if current || d.madeKubeconfig {
		c.CurrentContext = d.context
	}
	return d.replaceKubeconfig(c)
}

// replaceKubeconfig writes it whole or not at all.
func (d *devClient) replaceKubeconfig(c *clientcmdapi.Config) error {
	path := d.kubeconfig
	if linked, err := filepath.EvalSymlinks(path); err == nil {
		path = linked
	}
	b, err := clientcmd.Write(*c)
	if err == nil {
		err = os.MkdirAll(filepath.Dir(path), 0o700)
	}
	if err == nil {
		err = atomicfile.Write(path, b, 0o600)
	}
	if err != nil {
		return fmt.Errorf("writing the kubeconfig: %w", err)
	}
	return nil
}

// forgetKubeconfig takes the cluster out again. A file that was made for it, and has no other, is removed.
func (d *devClient) forgetKubeconfig() error {
	c, err := clientcmd.LoadFromFile(d.kubeconfig)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	delete(c.Clusters, d.context)
	delete(c.AuthInfos, d.context)
	delete(c.Contexts, d.context)
	if c.CurrentContext == d.context {
		c.CurrentContext = ""
		if _, ok := c.Contexts[d.kubeconfigBefore]; ok {
			c.CurrentContext = d.kubeconfigBefore
		}
	}
	if d.madeKubeconfig && len(c.Clusters)+len(c.AuthInfos)+len(c.Contexts) == 0 {
		return os.Remove(d.kubeconfig)
	}
	return d.replaceKubeconfig(c)
}

func (d *devClient) tell(cluster *agent.Dev, took time.Duration, f devFlags) {
	out := d.app.out
	fmt.Fprintf(out, "The cluster is ready after %.1f s.\n\n", took.Seconds())
	leader := cluster.Leader()
	for _, s := range cluster.Servers() {
		role := ""
		if s == leader {
			role = "  (leads)"
		}
		fmt.Fprintf(out, "  %s  https://%s%s\n", s.Name(), s.HTTPAddr(), role)
	}
	fmt.Fprintf(out, "\n  kubeconfig     %s\n  berth context  %s in %s\n\nGo on in another terminal:\n\n", d.kubeconfig, d.context, d.file)
	berth := "berth"
	if f.noSwitch {
		berth = "berth --context " + d.context
	}
	fmt.Fprintf(out, "  %s get nodes\n", berth)
	try := "-f examples/manifests/classes.yaml -f examples/manifests/batch.yaml"
	if f.runtime == "cri" {
		try = "-f examples/manifests/container.yaml"
	}
	fmt.Fprintf(out, "  %s apply %s\n", berth, try)
	fmt.Fprintf(out, "  kubectl --kubeconfig %s get pods\n", d.kubeconfig)
	fmt.Fprintf(out, "\nCtrl-C ends it.\n")
}
