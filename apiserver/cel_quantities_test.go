package apiserver

import (
	"testing"

	"github.com/google/cel-go/cel"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apiserver/pkg/cel/environment"
)

// What an expression parses as a quantity is bounded as what the API decodes is.
func TestExpressionsParseNoQuantityThatNobodyCanCompute(t *testing.T) {
	if err := boundExpressions(); err != nil {
		t.Fatal(err)
	}
	set, err := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion()).Extend(environment.VersionedOptions{
		IntroducedVersion: version.MajorMinor(1, 0), EnvOptions: []cel.EnvOption{cel.Variable("text", cel.StringType)},
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, env := range []*cel.Env{set.NewExpressionsEnv(), set.StoredExpressionsEnv()} {
		for expression, want := range map[string]map[string]any{
			"isQuantity(text)": {
				"5Gi": true, "1e3": true, "five": false, "1e-2147483647": false, "1e2147483647": false,
			},
			"quantity(text).isGreaterThan(quantity('1Gi'))": {
				"5Gi": true, "1e3": false, "five": nil, "1e-2147483647": nil, "1e2147483647": nil,
			},
		} {
			ast, issues := env.Compile(expression)
			if issues.Err() != nil {
				t.Fatal(issues.Err())
			}
			program, err := env.Program(ast)
			if err != nil {
				t.Fatal(err)
			}
			for text, is := range want {
				out, _, err := program.Eval(map[string]any{"text": text})
				if (err != nil) != (is == nil) || err == nil && out.Value() != is {
					t.Errorf("%s of %s: %v, %v; want %v", expression, text, out, err, is)
				}
			}
		}
	}
}
