package main

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

const (
	usualSort  = "tulip"
	mostPlants = 5
	manyPlants = 3
)

// rules are what the webhooks of admission hold.
type rules struct{}

func (rules) Default(_ context.Context, p *Plot) error {
	if p.Spec.Sort == "" {
		p.Spec.Sort = usualSort
	}
	return nil
}

func (rules) ValidateCreate(_ context.Context, p *Plot) (admission.Warnings, error) {
	var warnings admission.Warnings
	if p.Spec.Plants > manyPlants {
		warnings = append(warnings, fmt.Sprintf("more than %d plants want much water", manyPlants))
	}
	if p.Spec.Plants > mostPlants {
		return warnings, field.Invalid(field.NewPath("spec", "plants"), p.Spec.Plants, fmt.Sprintf("no plot has room for more than %d", mostPlants))
	}
	return warnings, nil
}

func (r rules) ValidateUpdate(ctx context.Context, old, p *Plot) (admission.Warnings, error) {
	if p.Spec.Sort != old.Spec.Sort {
		return nil, field.Forbidden(field.NewPath("spec", "sort"), "plants stay what they are")
	}
	return r.ValidateCreate(ctx, p)
}

func (rules) ValidateDelete(context.Context, *Plot) (admission.Warnings, error) { return nil, nil }
