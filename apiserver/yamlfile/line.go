package yamlfile

import (
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// named is how decoders name a field that they do not know.
var named = regexp.MustCompile(`field "([^"]+)"`)

// Placed says in which line of a file a mistake is, as far as that can be told.
func Placed(file string, data []byte, err error) error {
	var wrong *field.Error
	if errors.As(err, &wrong) {
		return at(file, lineOf(data, wrong.Field), err)
	}
	if strict, ok := runtime.AsStrictDecodingError(err); ok {
		var all []error
		for _, e := range strict.Errors() {
			line := 0
			if m := named.FindStringSubmatch(e.Error()); m != nil {
				line = lineOf(data, m[1])
			}
			all = append(all, at(file, line, e))
		}
		return errors.Join(all...)
	}
	return at(file, 0, err)
}

func at(file string, line int, err error) error {
	if line == 0 {
		return fmt.Errorf("%s: %w", file, err)
	}
	return fmt.Errorf("%s:%d: %w", file, line, err)
}

// lineOf finds a field like jwt[0].issuer.url, or what is nearest above it: 0 is nowhere.
func lineOf(data []byte, path string) int {
	var doc yaml.Node
	if yaml.Unmarshal(data, &doc) != nil || len(doc.Content) == 0 {
		return 0
	}
	n, line := doc.Content[0], 0
	for part := range strings.FieldsFuncSeq(path, func(r rune) bool { return strings.ContainsRune(".[]", r) }) {
		switch n.Kind {
		case yaml.MappingNode:
			next := -1
			for i := 0; i+1 < len(n.Content); i += 2 {
				if n.Content[i].Value == part {
					next = i
				}
			}
			if next < 0 {
				return line
			}
			line, n = n.Content[next].Line, n.Content[next+1]
		case yaml.SequenceNode:
			i, err := strconv.Atoi(part)
			if err != nil || i < 0 || i >= len(n.Content) {
				return line
			}
			n = n.Content[i]
			line = n.Line
		default:
			return line
		}
	}
	return line
}
