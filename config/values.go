package config

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation"
)

// The types below are strings in the file; check tells what is wrong with one,
// and the accessor gives the value of one that was checked.

// Duration is a Go duration such as "1m30s".
type Duration string

// Value is the duration; 0 if empty.
func (d Duration) Value() time.Duration {
	v, _ := time.ParseDuration(string(d))
	return v
}

func (d Duration) check() error {
	if d == "" {
		return nil
	}
	v, err := time.ParseDuration(string(d))
	if err != nil || v < 0 {
		return fmt.Errorf(`%q is not a duration; write, for example, "500ms", "10s" or "2m"`, string(d))
	}
	return nil
}

// Quantity is an amount in Kubernetes' notation, such as "500m" or "10Gi".
type Quantity string

// Value is the amount; zero if empty.
func (q Quantity) Value() resource.Quantity {
	if q == "" {
		return resource.Quantity{}
	}
	v, err := resource.ParseQuantity(string(q))
	if err != nil {
		return resource.Quantity{}
	}
	return v
}

func (q Quantity) check() error {
	if q == "" {
		return nil
	}
	v, err := resource.ParseQuantity(string(q))
	if err != nil {
		return fmt.Errorf(`%q is not an amount; write, for example, "500m", "4" or "10Gi"`, string(q))
	}
	if v.Sign() < 0 {
		return fmt.Errorf("%q is less than nothing", string(q))
	}
	return nil
}

// Path is a file or directory. A relative one counts from the directory of the
// file that it was written in; "~/" is the user's home.
type Path string

// ParseTaint reads "key=value:Effect" or "key:Effect".
func ParseTaint(s string) (corev1.Taint, error) {
	const form = `a taint is written "key=value:Effect" or "key:Effect"`
	keyValue, effect, ok := strings.Cut(s, ":")
	if !ok {
		return corev1.Taint{}, fmt.Errorf("%q has no effect; %s", s, form)
	}
	key, value, _ := strings.Cut(keyValue, "=")
	if problems := validation.IsQualifiedName(key); len(problems) > 0 {
		return corev1.Taint{}, fmt.Errorf("%q has a bad key: %s", s, problems[0])
	}
	if problems := validation.IsValidLabelValue(value); len(problems) > 0 {
		return corev1.Taint{}, fmt.Errorf("%q has a bad value: %s", s, problems[0])
	}
	effects := []string{string(corev1.TaintEffectNoSchedule), string(corev1.TaintEffectPreferNoSchedule), string(corev1.TaintEffectNoExecute)}
	for _, e := range effects {
		if effect == e {
			return corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffect(effect)}, nil
		}
	}
	return corev1.Taint{}, fmt.Errorf("%q has the unknown effect %q%s", s, effect, suggest(effect, effects))
}
