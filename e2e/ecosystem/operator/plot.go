package main

import (
	"context"
	"fmt"
	"strconv"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

const (
	group = "garden.example.com"
	kind  = "Plot"
)

// Plot is the stored version: so many plants of a sort.
type Plot struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              PlotSpec   `json:"spec"`
	Status            PlotStatus `json:"status,omitempty"`
}

type PlotSpec struct {
	Plants int32  `json:"plants"`
	Sort   string `json:"sort,omitempty"`
	Image  string `json:"image"`
}

type PlotStatus struct {
	ReadyPlants        int32              `json:"readyPlants"`
	ObservedGeneration int64              `json:"observedGeneration,omitempty"`
	Conditions         []metav1.Condition `json:"conditions,omitempty"`
}

type PlotList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Plot `json:"items"`
}

// OldPlot is what version v1alpha1 had: the number was a text.
type OldPlot struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              OldPlotSpec `json:"spec"`
	Status            PlotStatus  `json:"status,omitempty"`
}

type OldPlotSpec struct {
	Size  string `json:"size"`
	Sort  string `json:"sort,omitempty"`
	Image string `json:"image"`
}

func addToScheme(s *runtime.Scheme) {
	v1, old := schema.GroupVersion{Group: group, Version: "v1"}, schema.GroupVersion{Group: group, Version: "v1alpha1"}
	s.AddKnownTypeWithName(v1.WithKind(kind), &Plot{})
	s.AddKnownTypeWithName(v1.WithKind(kind+"List"), &PlotList{})
	s.AddKnownTypeWithName(old.WithKind(kind), &OldPlot{})
	metav1.AddToGroupVersion(s, v1)
	metav1.AddToGroupVersion(s, old)
}

func toPlot(_ context.Context, from *OldPlot, to *Plot) error {
	plants, err := strconv.ParseInt(from.Spec.Size, 10, 32)
	if err != nil {
		return fmt.Errorf("spec.size: %w", err)
	}
	to.ObjectMeta, to.Status = from.ObjectMeta, from.Status
	to.Spec = PlotSpec{Plants: int32(plants), Sort: from.Spec.Sort, Image: from.Spec.Image}
	return nil
}

func fromPlot(_ context.Context, from *Plot, to *OldPlot) error {
	to.ObjectMeta, to.Status = from.ObjectMeta, from.Status
	to.Spec = OldPlotSpec{Size: strconv.Itoa(int(from.Spec.Plants)), Sort: from.Spec.Sort, Image: from.Spec.Image}
	return nil
}

func (s PlotStatus) deepCopy() PlotStatus {
	conditions := s.Conditions
	s.Conditions = nil
	for i := range conditions {
		s.Conditions = append(s.Conditions, *conditions[i].DeepCopy())
	}
	return s
}

func (p *Plot) DeepCopyObject() runtime.Object {
	out := *p
	out.ObjectMeta, out.Status = *p.ObjectMeta.DeepCopy(), p.Status.deepCopy()
	return &out
}

func (p *OldPlot) DeepCopyObject() runtime.Object {
	out := *p
	out.ObjectMeta, out.Status = *p.ObjectMeta.DeepCopy(), p.Status.deepCopy()
	return &out
}

func (l *PlotList) DeepCopyObject() runtime.Object {
	out := *l
	out.ListMeta, out.Items = *l.ListMeta.DeepCopy(), nil
	for i := range l.Items {
		out.Items = append(out.Items, *l.Items[i].DeepCopyObject().(*Plot))
	}
	return &out
}
