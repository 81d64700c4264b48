package roles

import (
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// maxExceptions bounds the names in one annotation: they are read for every request.
const maxExceptions = 64

// names are those of an annotation.
func names(list string) []string { return strings.Split(list, ",") }

// ValidateExceptions checks the annotations that say for whom, or where, a
// ClusterRoleBinding does not count. Other kinds of bindings have none.
func ValidateExceptions(annotations map[string]string, clusterWide bool) (errs field.ErrorList) {
	path := field.NewPath("metadata", "annotations")
	check := func(key string, wrong func(name string) []string) {
		list, ok := annotations[key]
		switch {
		case !ok:
			return
		case !clusterWide:
			errs = append(errs, field.Forbidden(path.Key(key), "it counts on a ClusterRoleBinding"))
			return
		}
		all := names(list)
		if len(all) > maxExceptions {
			errs = append(errs, field.TooMany(path.Key(key), len(all), maxExceptions))
			return
		}
		for _, name := range all {
			for _, why := range wrong(name) {
				errs = append(errs, field.Invalid(path.Key(key), name, why))
			}
		}
	}
	check(ExceptNamespacesAnnotation, validation.IsDNS1123Label)
	check(ExceptGroupsAnnotation, func(name string) []string {
		if name == "" || strings.TrimSpace(name) != name {
			return []string{"a group's name is neither empty nor begins or ends with a space"}
		}
		return nil
	})
	return errs
}
