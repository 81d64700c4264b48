package apiserver

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/yaml"
)

// TestExamplesGoTogether: the manifests of the examples can be applied in one namespace, one after the other, and none takes what another one makes.
func TestExamplesGoTogether(t *testing.T) {
	files, err := filepath.Glob("../examples/manifests/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	const classes = "../examples/manifests/classes.yaml" // pods name them
	files = append([]string{classes}, slices.DeleteFunc(files, func(f string) bool { return f == classes })...)
	k := newKubectl(t, start(t, newDouble(t), nil), "default")
	of := map[string]string{}             // who has an object, by kind and name
	pods := map[string]labels.Set{}       // of templates
	takes := map[string]labels.Selector{} // who makes pods
	for _, file := range files {
		k.want("", []string{"apply", "-f", file}, "created")
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		objects := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
		for o := new(unstructured.Unstructured); objects.Decode(&o.Object) == nil; o = new(unstructured.Unstructured) {
			name := o.GetKind() + " " + o.GetName()
			if other := of[name]; other != "" {
				t.Errorf("%s is in %s and in %s", name, other, file)
			}
			of[name] = file
			if template, ok, _ := unstructured.NestedStringMap(o.Object, "spec", "template", "metadata", "labels"); ok {
				pods[name] = template
			}
			if selector, ok, _ := unstructured.NestedStringMap(o.Object, "spec", "selector", "matchLabels"); ok && pods[name] != nil {
				takes[name] = labels.SelectorFromSet(selector)
			}
		}
	}
	for one, selector := range takes {
		for other, set := range pods {
			if one != other && selector.Matches(set) {
				t.Errorf("%s takes the pods of %s", one, other)
			}
		}
	}
	if out, err := k.run("", "get", "pod", "urgent", "-o", "jsonpath={.spec.containers[0].resources.limits.cpu}"); err != nil || out != "1" {
		t.Error(out, err)
	}
}
