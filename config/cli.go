package config

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// CLI is the command line's configuration file.
type CLI struct {
	CurrentContext string     `hcl:"current_context,optional"`
	Contexts       []*Context `hcl:"context,block"`

	file string
	src  *sources
}

// Context is one cluster as one user sees it.
type Context struct {
	Name      string   `hcl:"name,label"`
	Addresses []string `hcl:"addresses,optional"`
	Token     string   `hcl:"token,optional"`
	TokenFile Path     `hcl:"token_file,optional"`
	Namespace string   `hcl:"namespace,optional"`
	Output    string   `hcl:"output,optional"`

	TLS *ClientTLS `hcl:"tls,block"`
}

// ClientTLS names the CA that servers must be from, and the user's certificate.
type ClientTLS struct {
	CAFile     Path   `hcl:"ca_file,optional"`
	CertFile   Path   `hcl:"cert_file,optional"`
	KeyFile    Path   `hcl:"key_file,optional"`
	ServerName string `hcl:"server_name,optional"`
	SkipVerify bool   `hcl:"skip_verify,optional"`
}

// Outputs are the forms that Berth's own verbs print.
var outputs = []string{"table", "json", "yaml"}

// CLIFile is where the command line's configuration is: BERTH_CLI_CONFIG, or
// berth/cli.hcl in the user's configuration directory.
func CLIFile(getenv func(string) string) (string, error) {
	if f := getenv("BERTH_CLI_CONFIG"); f != "" {
		return f, nil
	}
	dir := getenv("XDG_CONFIG_HOME")
	if dir == "" {
		home := getenv("HOME")
		if home == "" {
			return "", errors.New("no home directory: HOME is not set; name the file with --cli-config or BERTH_CLI_CONFIG")
		}
		dir = filepath.Join(home, ".config")
	}
	return filepath.Join(dir, "berth", "cli.hcl"), nil
}

// LoadCLI reads the command line's configuration. A file that is not there is an
// empty one. The error is an *Error if the file is at fault.
func LoadCLI(file string) (*CLI, error) {
	c := &CLI{file: file, src: newSources()}
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
		return c, nil
	}
	var ps problems
	if err := c.src.decodeFile(&ps, file, c); err != nil {
		return nil, err
	}
	if err := ps.err(); err != nil {
		return nil, err
	}
	k := checker{ps: &ps, src: c.src}
	for _, ctx := range c.Contexts {
		if ctx.TLS == nil {
			ctx.TLS = &ClientTLS{}
		}
		ctx.validate(k)
	}
	if c.CurrentContext != "" {
		if _, err := c.context(c.CurrentContext); err != nil {
			k.fail("current_context", "%v", err)
		}
	}
	if err := ps.err(); err != nil {
		return nil, err
	}
	return c, nil
}

func (ctx *Context) validate(k checker) {
	prefix := "context." + ctx.Name + "."
	for _, a := range ctx.Addresses {
		if _, err := ServerURL(a); err != nil {
			k.fail(prefix+"addresses", "%v", err)
		}
	}
	if ctx.Token != "" && ctx.TokenFile != "" {
		k.fail(prefix+"token", "token and token_file are both set; leave one out")
	}
	if (ctx.TLS.CertFile == "") != (ctx.TLS.KeyFile == "") {
		k.fail(prefix+"tls", "cert_file and key_file go together; one is missing")
	}
	if ctx.TLS.SkipVerify && ctx.TLS.CAFile != "" {
		k.fail(prefix+"tls.skip_verify", "with it nothing is verified, and ca_file has no use; leave one out")
	}
	if ctx.Output != "" {
		if problem, ok := oneOf(ctx.Output, outputs...); !ok {
			k.fail(prefix+"output", "%s", problem)
		}
	}
}

// ErrUnknownContext is wrapped by the error for a context that is not in the file.
var ErrUnknownContext = errors.New("unknown context")

func (c *CLI) context(name string) (*Context, error) {
	var known []string
	for _, ctx := range c.Contexts {
		if ctx.Name == name {
			return ctx, nil
		}
		known = append(known, ctx.Name)
	}
	switch {
	case len(known) == 0:
		return nil, fmt.Errorf("%w %q: %s has no contexts", ErrUnknownContext, name, c.file)
	case suggest(name, known) != "":
		return nil, fmt.Errorf("%w %q%s", ErrUnknownContext, name, suggest(name, known))
	}
	return nil, fmt.Errorf("%w %q: %s has %s", ErrUnknownContext, name, c.file, strings.Join(known, ", "))
}

// ServerURL completes a server's address: https and the default port may be left
// out. The result has a scheme and host:port only.
func ServerURL(address string) (string, error) {
	full := address
	if !strings.Contains(full, "://") {
		full = "https://" + full
	}
	u, err := url.Parse(full)
	if err != nil || u.Hostname() == "" || (u.Path != "" && u.Path != "/") || u.RawQuery != "" || u.User != nil {
		return "", fmt.Errorf(`%q is not the address of a server; write, for example, "10.0.0.1:%d"`, address, DefaultHTTPPort)
	}
	if u.Scheme != "https" && u.Scheme != "http" {
		return "", fmt.Errorf("%q begins with %s://; servers speak https", address, u.Scheme)
	}
	port := u.Port()
	if port == "" {
		port = strconv.Itoa(DefaultHTTPPort)
	}
	return u.Scheme + "://" + net.JoinHostPort(u.Hostname(), port), nil
}
