package config

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/hclwrite"
	"github.com/zclconf/go-cty/cty"

	"github.com/berth-dev/berth/atomicfile"
)

// WriteContext puts a context into the command line's file, in the place of one
// of the same name, and makes it the current one if current is set. Everything
// else in the file stays as it was written.
func WriteContext(file string, ctx Context, current bool) error {
	// Read it first as commands will: what they would refuse must not be built on.
	if _, err := LoadCLI(file); err != nil {
		return err
	}
	data, err := os.ReadFile(file)
	if err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("reading the command line's configuration: %w", err)
	}
	f, diags := hclwrite.ParseConfig(data, file, hcl.InitialPos)
	if diags.HasErrors() {
		return fmt.Errorf("reading the command line's configuration: %w", diags)
	}
	body := f.Body()
	if current {
		body.SetAttributeValue("current_context", cty.StringVal(ctx.Name))
	}
	block := body.FirstMatchingBlock("context", []string{ctx.Name})
	if block == nil {
		if len(body.Blocks()) > 0 || len(body.Attributes()) > 0 {
			body.AppendNewline()
		}
		block = body.AppendNewBlock("context", []string{ctx.Name})
	}
	for name := range block.Body().Attributes() {
		block.Body().RemoveAttribute(name)
	}
	for _, b := range block.Body().Blocks() {
		block.Body().RemoveBlock(b)
	}
	writeContext(block.Body(), ctx)
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return fmt.Errorf("making the configuration directory: %w", err)
	}
	if err := atomicfile.Write(file, f.Bytes(), 0o600); err != nil {
		return fmt.Errorf("writing the command line's configuration: %w", err)
	}
	return nil
}

// RemoveContext takes a context out of the command line's file. Where it is the
// current one, next becomes that; "" leaves none.
func RemoveContext(file, name, next string) error {
	data, err := os.ReadFile(file)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading the command line's configuration: %w", err)
	}
	cli, err := LoadCLI(file)
	if err != nil {
		return err
	}
	f, diags := hclwrite.ParseConfig(data, file, hcl.InitialPos)
	if diags.HasErrors() {
		return fmt.Errorf("reading the command line's configuration: %w", diags)
	}
	if block := f.Body().FirstMatchingBlock("context", []string{name}); block != nil {
		f.Body().RemoveBlock(block)
	}
	if cli.CurrentContext == name {
		if _, err := cli.context(next); err == nil && next != name {
			f.Body().SetAttributeValue("current_context", cty.StringVal(next)) // what is said above it stays
		} else {
			f.Body().RemoveAttribute("current_context")
		}
	}
	left := bytes.TrimRight(f.Bytes(), "\n") // the blank line above a new context
	if len(left) > 0 {
		left = append(left, '\n')
	}
	if err := atomicfile.Write(file, left, 0o600); err != nil {
		return fmt.Errorf("writing the command line's configuration: %w", err)
	}
	return nil
}

func writeContext(b *hclwrite.Body, ctx Context) {
	set := func(b *hclwrite.Body, name, value string) {
		if value != "" {
			b.SetAttributeValue(name, cty.StringVal(value))
		}
	}
	addresses := make([]cty.Value, len(ctx.Addresses))
	for i, a := range ctx.Addresses {
		addresses[i] = cty.StringVal(a)
	}
	if len(addresses) > 0 {
		b.SetAttributeValue("addresses", cty.ListVal(addresses))
	}
	set(b, "token", ctx.Token)
	set(b, "token_file", string(ctx.TokenFile))
	set(b, "namespace", ctx.Namespace)
	set(b, "output", ctx.Output)
	if t := ctx.TLS; t != nil && *t != (ClientTLS{}) {
		tls := b.AppendNewBlock("tls", nil).Body()
		set(tls, "ca_file", string(t.CAFile))
		set(tls, "cert_file", string(t.CertFile))
		set(tls, "key_file", string(t.KeyFile))
		set(tls, "server_name", t.ServerName)
		if t.SkipVerify {
			tls.SetAttributeValue("skip_verify", cty.True)
		}
	}
}
