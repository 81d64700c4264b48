package codec

import (
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Some quantities are in texts: the size of pages is in the names of resources and of media, and annotations hold what
// the first version of autoscalers has no fields for, as JSON.

// pagesOf are what stands before the size of pages in the name of a resource.
var pagesOf = []string{corev1.ResourceHugePagesPrefix, corev1.DefaultResourceRequestsPrefix + corev1.ResourceHugePagesPrefix, "limits." + corev1.ResourceHugePagesPrefix}

// quantitiesIn are the annotations in which quantities are looked for.
var quantitiesIn = map[string]func(text string) error{
	"autoscaling.alpha.kubernetes.io/metrics":         checkTexts,
	"autoscaling.alpha.kubernetes.io/current-metrics": checkTexts,
	"autoscaling.alpha.kubernetes.io/behavior":        checkTexts,
	"volume.alpha.kubernetes.io/pre-resize-capacity":  checkQuantity,
}

// checkText looks at a text of a type.
func checkText(t reflect.Type, text string) error {
	if size, ok := strings.CutPrefix(text, string(corev1.StorageMediumHugePagesPrefix)); ok && t == mediumType {
		return checkQuantity(size)
	}
	return nil
}

// tells is how the text is looked at that a map has under a name; nil: there is nothing in it.
func tells(t reflect.Type, name string) func(text string) error {
	if t != annotationsType {
		return nil
	}
	return quantitiesIn[name]
}

// checkEntry looks at the name that a map has for something, and in protobuf at what that is.
func checkEntry(t reflect.Type, name string, said []byte) error {
	if t.Kind() != reflect.Map {
		return nil
	}
	if told := tells(t, name); told != nil {
		if err := told(string(said)); err != nil {
			return fmt.Errorf(".%s%w", name, err)
		}
	}
	if element(t.Elem()) != quantityType {
		return nil
	}
	for _, prefix := range pagesOf {
		if size, ok := strings.CutPrefix(name, prefix); ok {
			if err := checkQuantity(size); err != nil {
				return fmt.Errorf(".%s%w", name, err)
			}
		}
	}
	return nil
}

// isNumber tells what may be a quantity from a name that has digits.
var isNumber = regexp.MustCompile(`^[+-]?[0-9.]*([eE][+-]?[0-9]+)?$`)

// checkTexts looks at every text and number of JSON, whatever it is: its decoder does not look at how names are written.
func checkTexts(text string) error {
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	for {
		token, err := d.Token()
		if err != nil {
			return nil //nolint:nilerr // it is at its end, or its decoder says what is wrong
		}
		if s := strings.TrimSpace(fmt.Sprint(token)); isNumber.MatchString(s) {
			if err := checkQuantity(s); err != nil {
				return err
			}
		}
	}
}
