package verb

import (
	"fmt"
	"net"
	"net/url"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/berth-dev/berth/atomicfile"
	"github.com/berth-dev/berth/pki"
)

// kubeletFile says where the kubeconfig is written by which kubelets join, and which server it names.
type kubeletFile struct{ path, server string }

// address is the URL that the kubeconfig has: what was said, or the server that the command asks itself. A
// kubelet knows one address, and knows it by a name that the server's certificate has.
func (k *kubeletFile) address(servers []string) (string, error) {
	said := k.server
	if said == "" {
		return servers[0], nil
	}
	if host, port, err := net.SplitHostPort(said); err == nil && host != "" && port != "" {
		return "https://" + said, nil
	}
	if u, err := url.Parse(said); err != nil || u.Scheme != "https" || u.Host == "" || u.Path != "" || u.RawQuery != "" {
		return "", usagef("--server-address %q is neither HOST:PORT nor https://HOST:PORT", said)
	}
	return said, nil
}

// write writes the kubeconfig. Whoever reads it can join, so nobody else may.
func (k *kubeletFile) write(e *Env, server string, ca []byte, t pki.JoinToken) error {
	const name = "berth"
	c := clientcmdapi.NewConfig()
	c.Clusters[name] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: ca}
	c.AuthInfos[name] = &clientcmdapi.AuthInfo{Token: t.Bearer()}
	c.Contexts[name] = &clientcmdapi.Context{Cluster: name, AuthInfo: name}
	c.CurrentContext = name
	text, err := clientcmd.Write(*c)
	if err != nil {
		return fmt.Errorf("writing the kubeconfig: %w", err)
	}
	if k.path == "-" {
		_, err := e.Out.Write(text)
		return err
	}
	if err := atomicfile.Write(k.path, text, 0o600); err != nil {
		return fmt.Errorf("writing the kubeconfig: %w", err)
	}
	_, err = fmt.Fprintf(e.Out, "%s: kubelets join by it at %s, with --bootstrap-kubeconfig, until token %s ends\n", k.path, server, t.ID)
	return err
}
