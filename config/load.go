package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"strings"

	"github.com/hashicorp/hcl/v2"
	"github.com/hashicorp/hcl/v2/gohcl"
	"github.com/hashicorp/hcl/v2/hclsyntax"
)

// Load reads files and directories of an agent's configuration, fills in
// defaults and checks the whole. Of a directory every *.hcl file is read, in the
// order of their names; what a later file sets replaces what an earlier one set,
// option by option. The error is an *Error if the configuration is at fault.
func Load(paths ...string) (*Config, error) {
	files, err := expand(paths)
	if err != nil {
		return nil, err
	}
	c := Default()
	c.src = newSources()
	var ps problems
	for _, f := range files {
		if err := c.src.decodeFile(&ps, f, c); err != nil {
			return nil, err
		}
	}
	// A file that could not be understood would only make the checks below
	// complain of what is missing.
	if err := ps.err(); err != nil {
		return nil, err
	}
	c.fillIn()
	c.validate(&ps)
	if err := ps.err(); err != nil {
		return nil, err
	}
	return c, nil
}

// JoinBy sets the token of a worker, or the file that has it, as options of the command line do. Both
// may be empty.
func (c *Config) JoinBy(token, file string) error {
	if token == "" && file == "" {
		return nil
	}
	if !c.Worker.Enabled {
		return errors.New("a join token is for a worker, and this agent is none")
	}
	c.Worker.JoinToken, c.Worker.JoinTokenFile = token, Path(file)
	var ps problems
	c.validateJoining(checker{ps: &ps, src: c.src})
	return ps.err()
}

// expand lists the files that the given files and directories stand for.
func expand(paths []string) ([]string, error) {
	if len(paths) == 0 {
		return nil, errors.New("no configuration file is named")
	}
	var files []string
	for _, p := range paths {
		info, err := os.Stat(p)
		if errors.Is(err, fs.ErrNotExist) {
			return nil, &Error{Problems: []Problem{{File: p, Message: "there is no such file or directory"}}}
		}
		if err != nil {
			return nil, fmt.Errorf("reading the configuration: %w", err)
		}
		if !info.IsDir() {
			files = append(files, p)
			continue
		}
		entries, err := os.ReadDir(p) // sorted by name
		if err != nil {
			return nil, fmt.Errorf("reading the configuration: %w", err)
		}
		found := false
		for _, e := range entries {
			if !e.IsDir() && strings.HasSuffix(e.Name(), ".hcl") && !strings.HasPrefix(e.Name(), ".") {
				files, found = append(files, filepath.Join(p, e.Name())), true
			}
		}
		if !found {
			return nil, &Error{Problems: []Problem{{File: p, Message: "the directory has no file whose name ends in .hcl"}}}
		}
	}
	return files, nil
}

// decodeFile lays one file over target, a pointer to a struct with hcl tags.
// Mistakes in the file are collected; the error is for files that cannot be read.
func (s *sources) decodeFile(ps *problems, file string, target any) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return fmt.Errorf("reading the configuration: %w", err)
	}
	if s.first == "" {
		s.first = file
	}
	parsed, diags := hclsyntax.ParseConfig(data, file, hcl.InitialPos)
	if diags.HasErrors() {
		ps.addDiagnostics(file, diags[:1]) // the ones after it are its echoes
		return nil
	}
	before := len(*ps)
	s.checkBody(ps, parsed.Body.(*hclsyntax.Body), reflect.TypeOf(target).Elem(), "")
	if len(*ps) > before {
		return nil
	}
	ps.addDiagnostics(file, gohcl.DecodeBody(parsed.Body, nil, target))
	s.resolvePaths(file, reflect.ValueOf(target).Elem(), "")
	return nil
}

// resolvePaths makes every path that was written in file absolute or relative to
// the working directory.
func (s *sources) resolvePaths(file string, v reflect.Value, prefix string) {
	for _, o := range optionsOf(v.Type()) {
		f := v.Field(o.index)
		path := prefix + o.name
		switch o.kind {
		case "block":
			for _, b := range blocks(f) {
				s.resolvePaths(file, b, path+labelOf(b)+".")
			}
		case "optional":
			if p, ok := f.Interface().(Path); ok && s.ranges[path].Filename == file {
				f.SetString(string(resolve(p, file)))
			}
		}
	}
}

func resolve(p Path, file string) Path {
	s := string(p)
	switch {
	case s == "" || filepath.IsAbs(s):
		return p
	case strings.HasPrefix(s, "~/"):
		if home, err := os.UserHomeDir(); err == nil {
			return Path(filepath.Join(home, s[2:]))
		}
	}
	return Path(filepath.Join(filepath.Dir(file), s))
}

// blocks lists the structs behind a block's field.
func blocks(f reflect.Value) []reflect.Value {
	switch {
	case f.IsNil():
		return nil
	case f.Kind() == reflect.Slice:
		var out []reflect.Value
		for i := range f.Len() {
			out = append(out, f.Index(i).Elem())
		}
		return out
	}
	return []reflect.Value{f.Elem()}
}

// labelOf is the part of an option's path that a block's label makes.
func labelOf(block reflect.Value) string {
	for _, o := range optionsOf(block.Type()) {
		if o.kind == "label" {
			return "." + block.Field(o.index).String()
		}
	}
	return ""
}
