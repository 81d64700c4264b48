package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
)

// Flags are the connection settings given on the command line. An empty one was
// not given.
type Flags struct {
	CLIConfig  string
	Context    string
	Addresses  []string
	CAFile     string
	CertFile   string
	KeyFile    string
	ServerName string
	SkipVerify bool
	Token      string
	Namespace  string
	Output     string
	// KeepTrying: wait for ever until the servers have a leader.
	KeepTrying bool
}

// Connection is how a command reaches its cluster.
type Connection struct {
	// Context is the context that the rest is from; empty if none.
	Context string
	// Servers are URLs, in the order in which they are tried.
	Servers    []string
	CAFile     string
	CertFile   string
	KeyFile    string
	ServerName string
	// SkipVerify accepts any certificate; the CA is empty then.
	SkipVerify bool
	Token      string
	Namespace  string
	// Output is "table", "json" or "yaml".
	Output string
}

// Resolve joins flags, BERTH_* variables and the command line's file; each
// setting is taken from the first of them that has it.
func Resolve(f Flags, getenv func(string) string) (*Connection, error) {
	file := f.CLIConfig
	if file == "" {
		var err error
		if file, err = CLIFile(getenv); err != nil && needsFile(f, getenv) {
			return nil, err
		}
	}
	if _, err := os.Stat(f.CLIConfig); f.CLIConfig != "" && errors.Is(err, fs.ErrNotExist) {
		return nil, &Error{Problems: []Problem{{File: file, Message: "there is no such file"}}}
	}
	cli, err := LoadCLI(file)
	if err != nil {
		return nil, err
	}
	ctx := &Context{TLS: &ClientTLS{}}
	if name := first(f.Context, getenv("BERTH_CONTEXT"), cli.CurrentContext); name != "" {
		if ctx, err = cli.context(name); err != nil {
			return nil, err
		}
	}
	c := &Connection{
		Context:    ctx.Name,
		CAFile:     first(f.CAFile, getenv("BERTH_CA_FILE"), string(ctx.TLS.CAFile)),
		CertFile:   first(f.CertFile, getenv("BERTH_CERT_FILE"), string(ctx.TLS.CertFile)),
		KeyFile:    first(f.KeyFile, getenv("BERTH_KEY_FILE"), string(ctx.TLS.KeyFile)),
		ServerName: first(f.ServerName, getenv("BERTH_SERVER_NAME"), ctx.TLS.ServerName),
		Namespace:  first(f.Namespace, getenv("BERTH_NAMESPACE"), ctx.Namespace, "default"),
		Output:     first(f.Output, getenv("BERTH_OUTPUT"), ctx.Output, "table"),
	}
	if c.SkipVerify, err = skipVerify(f, getenv("BERTH_SKIP_VERIFY"), ctx); err != nil {
		return nil, err
	}
	if c.SkipVerify {
		c.CAFile = ""
	}
	if problem, ok := oneOf(c.Output, outputs...); !ok {
		return nil, fmt.Errorf("output: %s", problem)
	}
	if c.Servers, err = servers(f.Addresses, getenv("BERTH_ADDRESSES"), ctx.Addresses); err != nil {
		return nil, err
	}
	if c.Token, err = token(f, getenv, ctx); err != nil {
		return nil, err
	}
	// Servers look at a certificate first: a token that is given nearer than one says who asks.
	byToken, byCert := nearness(f.Token, getenv("BERTH_TOKEN")), nearness(f.CertFile+f.KeyFile, getenv("BERTH_CERT_FILE")+getenv("BERTH_KEY_FILE"))
	ofContext := f.Context != "" && f.Token == "" && ctx.TLS.CertFile != "" // a context that is named is nearer than a variable
	if byToken < byCert && !ofContext {
		c.CertFile, c.KeyFile = "", ""
	}
	return c, nil
}

// nearness is where a setting is from: a flag is nearer than a variable, and that nearer than the file.
func nearness(flag, env string) int {
	switch {
	case flag != "":
		return 0
	case env != "":
		return 1
	}
	return 2
}

// needsFile: without a home directory the command line still works if it is told
// everything.
func needsFile(f Flags, getenv func(string) string) bool {
	return f.Context != "" || getenv("BERTH_CONTEXT") != "" || (len(f.Addresses) == 0 && getenv("BERTH_ADDRESSES") == "")
}

func skipVerify(f Flags, env string, ctx *Context) (bool, error) {
	if f.SkipVerify || env == "" {
		return f.SkipVerify || ctx.TLS.SkipVerify, nil
	}
	v, err := strconv.ParseBool(env)
	if err != nil {
		return false, fmt.Errorf("BERTH_SKIP_VERIFY is %q; it can be true or false", env)
	}
	return v, nil
}

func servers(flags []string, env string, context []string) ([]string, error) {
	given := flags
	if len(given) == 0 && env != "" {
		given = strings.Split(env, ",")
	}
	if len(given) == 0 {
		given = context
	}
	if len(given) == 0 {
		given = []string{"127.0.0.1"}
	}
	var out []string
	for _, a := range given {
		u, err := ServerURL(strings.TrimSpace(a))
		if err != nil {
			return nil, err
		}
		out = append(out, u)
	}
	return out, nil
}

func token(f Flags, getenv func(string) string, ctx *Context) (string, error) {
	if t := first(f.Token, getenv("BERTH_TOKEN"), ctx.Token); t != "" || ctx.TokenFile == "" {
		return t, nil
	}
	data, err := os.ReadFile(string(ctx.TokenFile))
	if err != nil {
		return "", fmt.Errorf("reading the token of context %q: %w", ctx.Name, err)
	}
	return strings.TrimSpace(string(data)), nil
}

func first(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}
