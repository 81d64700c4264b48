package apiserver

import (
	"encoding/json"
	"fmt"
	"reflect"

	autoscalingv1 "k8s.io/api/autoscaling/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/kubernetes/pkg/apis/autoscaling"
	"sigs.k8s.io/yaml"
)

// What the first version of autoscalers has no fields for is in annotations there, as JSON, which becomes fields before anybody looks at
// them. They are no annotations then, and no bound of annotations holds for them.

// maxTextValues is how many values one of them may have: entries of its lists, and what these say.
const maxTextValues = 4096

var autoscalerType = reflect.TypeFor[autoscalingv1.HorizontalPodAutoscaler]()

// checkTextsOf refuses annotations that become too much.
func checkTextsOf(annotations map[string]string) error {
	for _, name := range []string{
		autoscaling.MetricSpecsAnnotation, autoscaling.MetricStatusesAnnotation, autoscaling.HorizontalPodAutoscalerConditionsAnnotation, autoscaling.BehaviorSpecsAnnotation,
	} {
		text := annotations[name]
		if len(text) <= maxTextValues {
			continue
		}
		if s := shapeOf([]byte(text)); s.values > maxTextValues || s.deep != "" {
			return apierrors.NewBadRequest(fmt.Sprintf("metadata.annotations[%s]: it has more than %d values", name, maxTextValues))
		}
	}
	return nil
}

// checkTextsIn is checkTextsOf for a patch that becomes an object without a serializer.
func checkTextsIn(patch []byte) error {
	var object struct {
		Metadata struct {
			Annotations map[string]any `json:"annotations"`
		} `json:"metadata"`
	}
	read := json.Unmarshal
	if !json.Valid(patch) {
		read = func(b []byte, into any) error { return yaml.Unmarshal(b, into) }
	}
	if read(patch, &object) != nil {
		return nil // upstream says what is wrong with it
	}
	texts := map[string]string{}
	for name, value := range object.Metadata.Annotations { // order does not matter: it is a map again
		texts[name], _ = value.(string)
	}
	return checkTextsOf(texts)
}
