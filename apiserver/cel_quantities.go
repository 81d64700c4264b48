package apiserver

import (
	"errors"
	"fmt"
	"sync"

	"github.com/google/cel-go/cel"
	"github.com/google/cel-go/common/decls"
	"github.com/google/cel-go/common/types"
	"github.com/google/cel-go/common/types/ref"
	"k8s.io/apimachinery/pkg/api/resource"
	apiservercel "k8s.io/apiserver/pkg/cel"
	"k8s.io/apiserver/pkg/cel/environment"

	"github.com/berth-dev/berth/codec"
)

// boundExpressions has the expressions of policies, of webhooks and of custom kinds parse no quantity that takes hours to
// compute: what they parse is whatever somebody has written into an object, and what it costs is not asked before it
// is done. All of Kubernetes' expressions are made from one environment, whose functions are bound otherwise here, for
// the whole process.
var boundExpressions = sync.OnceValue(func() error {
	base := environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())
	for name, overload := range map[string]decls.FunctionOpt{
		"quantity":   decls.Overload("string_to_quantity", []*cel.Type{cel.StringType}, apiservercel.QuantityType, decls.UnaryBinding(stringToQuantity)),
		"isQuantity": decls.Overload("is_quantity_string", []*cel.Type{cel.StringType}, cel.BoolType, decls.UnaryBinding(isQuantity)),
	} {
		bounded, err := decls.NewFunction(name, overload)
		if err != nil {
			return err
		}
		for _, env := range []*cel.Env{base.NewExpressionsEnv(), base.StoredExpressionsEnv()} {
			known := env.Functions()[name]
			if known == nil || len(known.OverloadDecls()) != 1 {
				return fmt.Errorf("expressions have no function %s of one argument", name)
			}
			if err := known.AddOverload(bounded.OverloadDecls()[0]); err != nil {
				return err
			}
		}
	}
	return nil
})

func parseQuantity(arg ref.Val) (resource.Quantity, error) {
	text, ok := arg.Value().(string)
	if !ok {
		return resource.Quantity{}, errors.New("not a text")
	}
	if err := codec.CheckQuantity(text); err != nil {
		return resource.Quantity{}, err
	}
	return resource.ParseQuantity(text)
}

// stringToQuantity is Kubernetes' function quantity.
func stringToQuantity(arg ref.Val) ref.Val {
	q, err := parseQuantity(arg)
	if err != nil {
		return types.WrapErr(err)
	}
	return apiservercel.Quantity{Quantity: &q}
}

// isQuantity is Kubernetes' function of that name.
func isQuantity(arg ref.Val) ref.Val {
	_, err := parseQuantity(arg)
	return types.Bool(err == nil)
}
