"""What columns are taken for, against what a person would say: made-up tables, the traps met in public ones, and
seventeen of these where $CTEM_DATA names a folder that has them.

A person says number (a quantity, a count, a grade in figures), label (words, and codes that only name something),
yes/no (two values), date, text (free), identifier or constant. Whether whole numbers are real or ordinal is the
library's business, and so is whether labels have an order. Codes written as numbers are labels for a person who knows
what they mean; no reader of the values alone can know that, and they count as wrong here.
"""

import os

import numpy as np
import pandas as pd
import pytest
import torch

import ctem
from ctem.datasets import TABLES, load_penguins, load_table
from ctem.tables.encoding.sketches import ColumnSketch, completed, rows_of_cells
from ctem.tables.io.frame import read_frame
from ctem.tables.schema import Schema

KINDS = {  # what a person says → kinds that agree
    "number": ("real", "ordinal"),
    "label": ("category", "ordinal"),
    "yes/no": ("ordinal", "category"),
    "date": ("real",),
    "text": ("text",),
    "identifier": ("identifier",),
    "constant": ("constant",),
}
RIGHT = 0.95
FOLDER = os.environ.get("CTEM_DATA", "")
SAID = {
    "titanic": {
        "yes/no": "survived sex adult_male alive alone",
        "number": "pclass age sibsp parch fare",
        "label": "embarked class who deck embark_town",
    },
    "penguins": {
        "label": "species island",
        "number": "bill_length_mm bill_depth_mm flipper_length_mm body_mass_g year",
        "yes/no": "sex",
    },
    "abalone": {
        "label": "sex",
        "number": "length diameter height whole_weight shucked_weight viscera_weight shell_weight rings",
    },
    "adult": {
        "number": "age fnlwgt education-num capital-gain capital-loss hours-per-week",
        "label": "workclass education marital-status occupation relationship race native-country",
        "yes/no": "sex income",
    },
    "bank": {
        "number": "age balance day duration campaign pdays previous",
        "label": "job marital education contact month poutcome",
        "yes/no": "default housing loan y",
    },
    "beijing": {
        "number": "year month day hour pm2.5 DEWP TEMP PRES Iws Is Ir",
        "label": "cbwd",
    },
    "california": {
        "number": (
            "longitude latitude housing_median_age total_rooms total_bedrooms population households "
            "median_income median_house_value"
        ),
        "label": "ocean_proximity",
    },
    "default": {
        "number": (
            "LIMIT_BAL AGE PAY_0 PAY_2 PAY_3 PAY_4 PAY_5 PAY_6 BILL_AMT1 BILL_AMT2 BILL_AMT3 BILL_AMT4 "
            "BILL_AMT5 BILL_AMT6 PAY_AMT1 PAY_AMT2 PAY_AMT3 PAY_AMT4 PAY_AMT5 PAY_AMT6"
        ),
        "yes/no": "SEX class",
        "label": "EDUCATION MARRIAGE",
    },
    "diamonds": {
        "number": "carat depth table price x y z",
        "label": "cut color clarity",
    },
    "german": {
        "label": "status history purpose savings employment personal debtors property plans housing job",
        "number": "duration amount rate residence age credits dependents",
        "yes/no": "telephone foreign class",
    },
    "magic": {
        "number": "length width size conc conc1 asym m3_long m3_trans alpha dist",
        "yes/no": "class",
    },
    "shoppers": {
        "number": (
            "Administrative Administrative_Duration Informational Informational_Duration ProductRelated "
            "ProductRelated_Duration BounceRates ExitRates PageValues SpecialDay"
        ),
        "label": "Month OperatingSystems Browser Region TrafficType VisitorType",
        "yes/no": "Weekend Revenue",
    },
    "ames": {
        "label": (
            "MS_SubClass MS_Zoning Alley Lot_Shape Land_Contour Utilities Lot_Config Land_Slope "
            "Neighborhood Condition_1 Condition_2 Bldg_Type House_Style Overall_Cond Roof_Style Roof_Matl "
            "Exterior_1st Exterior_2nd Mas_Vnr_Type Exter_Cond Foundation Bsmt_Cond Bsmt_Exposure "
            "BsmtFin_Type_1 BsmtFin_SF_1 BsmtFin_Type_2 Heating Heating_QC Electrical Functional "
            "Garage_Type Garage_Finish Garage_Cond Paved_Drive Pool_QC Fence Misc_Feature Sale_Type "
            "Sale_Condition"
        ),
        "number": (
            "Lot_Frontage Lot_Area Year_Built Year_Remod_Add Mas_Vnr_Area BsmtFin_SF_2 Bsmt_Unf_SF "
            "Total_Bsmt_SF First_Flr_SF Second_Flr_SF Gr_Liv_Area Bsmt_Full_Bath Bsmt_Half_Bath Full_Bath "
            "Half_Bath Bedroom_AbvGr Kitchen_AbvGr TotRms_AbvGrd Fireplaces Garage_Cars Garage_Area "
            "Wood_Deck_SF Open_Porch_SF Enclosed_Porch Three_season_porch Screen_Porch Pool_Area Misc_Val "
            "Mo_Sold Year_Sold Sale_Price Longitude Latitude"
        ),
        "yes/no": "Street Central_Air",
    },
    "flchain": {
        "number": "age sample.yr kappa lambda flc.grp creatinine futime",
        "yes/no": "sex mgus death",
        "label": "chapter",
    },
    "loans": {
        "text": "emp_title",
        "number": (
            "emp_length annual_income debt_to_income annual_income_joint debt_to_income_joint delinq_2y "
            "months_since_last_delinq earliest_credit_line inquiries_last_12m total_credit_lines "
            "open_credit_lines total_credit_limit total_credit_utilized num_collections_last_12m "
            "num_historical_failed_to_pay months_since_90d_late current_accounts_delinq "
            "total_collection_amount_ever current_installment_accounts accounts_opened_24m "
            "months_since_last_credit_inquiry num_satisfactory_accounts num_accounts_30d_past_due "
            "num_active_debit_accounts total_debit_limit num_total_cc_accounts num_open_cc_accounts "
            "num_cc_carrying_balance num_mort_accounts account_never_delinq_percent tax_liens "
            "public_record_bankrupt loan_amount term interest_rate installment balance paid_total "
            "paid_principal paid_interest paid_late_fees"
        ),
        "label": (
            "state homeownership verified_income verification_income_joint loan_purpose grade sub_grade "
            "loan_status"
        ),
        "constant": "num_accounts_120d_past_due",
        "yes/no": "application_type initial_listing_status disbursement_method",
        "date": "issue_month",
    },
    "pbc": {
        "identifier": "id",
        "number": "time age edema bili chol albumin copper alk.phos ast trig platelet protime stage",
        "label": "status",
        "yes/no": "trt sex ascites hepato spiders",
    },
    "storms": {
        "label": "name status",
        "number": (
            "year month day hour lat long category wind pressure tropicalstorm_force_diameter "
            "hurricane_force_diameter"
        ),
    },
    "weather": {
        "label": "origin",
        "constant": "year",
        "number": "month day hour temp dewp humid wind_dir wind_speed wind_gust precip pressure visib",
        "date": "time_hour",
    },
}


def agrees(word, column, values):
    """Whether a column was taken for what a person says; labels in figures are no ordinals, dates are read."""
    if word == "label" and column.kind == "ordinal":
        return not pd.api.types.is_numeric_dtype(values)
    return column.kind in KINDS[word] and (word == "date") == ("dates" in column.reason)


def judged(X, words):
    """The columns that were taken for something else, and how many there are."""
    assert set(words) == set(X.columns)
    found = ctem.inspect(X).columns
    return [each.name for each in found if not agrees(words[each.name], each, X[each.name])], len(found)


def path_of(name):
    return os.path.join(
        FOLDER, *(("tables", TABLES[name].path) if name in TABLES else ("wild", f"{name}.csv"))
    )


def there(name):
    """Whether a public table comes with the package, or is in the folder of data."""
    found = (path_of(name), f"{path_of(name)}.gz")
    return name == "penguins" or (bool(FOLDER) and any(map(os.path.exists, found)))


def stored(name):
    if name == "penguins":
        return load_penguins()
    return load_table(name, FOLDER) if name in TABLES else pd.read_csv(f"{path_of(name)}.gz")


N = 300
RNG = np.random.default_rng(0)
ROWS = np.arange(N)


def few(*labels):
    """Labels, the first ones more often."""
    return RNG.choice(labels, N, p=np.arange(len(labels), 0, -1) / np.arange(len(labels) + 1).sum())


def gappy(values, share=0.1, gap=np.nan):
    return np.where(RNG.random(N) < share, gap, values)


MADE = {  # tables as the public ones are, by what a person says of their columns
    "people": {
        "number": {
            "age": RNG.integers(17, 90, N),
            "weight": RNG.integers(12_285, 1_484_705, N),
            "gain": np.where(RNG.random(N) < 0.9, 0, RNG.integers(114, 99_999, N)),
            "hours": np.where(RNG.random(N) < 0.5, 40, RNG.integers(1, 99, N)),
        },
        "label": {
            "work": gappy(few("Private", "Self-emp", "Local-gov", "State-gov", "Never"), gap="?"),
            "relation": few("Husband", "Not-in-family", "Own-child", "Unmarried", "Wife"),
            "country": few("United-States", "Mexico", "Philippines", "Germany", "Canada", "India", "Cuba"),
        },
        "yes/no": {"sex": few("Male", "Female"), "income": few("<=50K", ">50K"), "foreign": few(0, 1)},
    },
    "houses": {
        "identifier": {"order": ROWS + 1},
        "number": {
            "longitude": RNG.uniform(-124.35, -114.31, N).round(2),
            "rooms": gappy(RNG.lognormal(7, 1, N).round()),
            "income": RNG.gamma(4, 1, N).round(4),
            "built": RNG.integers(1872, 2010, N),
            "quality": RNG.integers(1, 11, N),
            "baths": few(1, 2, 3, 0),
            "price": RNG.lognormal(12, 0.4, N).round(-2),
        },
        "label": {
            "near": few("<1H OCEAN", "INLAND", "NEAR BAY", "ISLAND"),
            "roof": few("Gable", "Hip", "Flat"),
        },
        "yes/no": {"air": few("Y", "N")},
    },
    "weather": {
        "date": {"at": [f"2013-{1 + i % 12:02d}-{1 + i % 28:02d}T{i % 24:02d}:00:00Z" for i in range(N)]},
        "constant": {"year": np.full(N, 2013)},
        "number": {
            "hour": RNG.integers(0, 24, N),
            "temperature": (32 + 1.8 * RNG.normal(12, 9, N).round(1)).round(2),
            "direction": gappy(10.0 * RNG.integers(0, 37, N)),
            "speed": 1.15078 * RNG.integers(0, 40, N),
            "rain": np.where(RNG.random(N) < 0.9, 0.0, RNG.exponential(0.1, N).round(2)),
            "pressure": gappy(RNG.normal(1017, 7, N).round(1)),
        },
        "label": {"origin": few("EWR", "JFK", "LGA")},
    },
    "patients": {
        "identifier": {"id": 7000 + RNG.permutation(N)},
        "number": {
            "days": RNG.integers(41, 4795, N),
            "age": RNG.uniform(26, 79, N).round(6),
            "bilirubin": RNG.lognormal(0.5, 1, N).round(1),
            "copper": gappy(RNG.lognormal(4, 0.8, N).round(), 0.3),
            "stage": gappy(RNG.integers(1, 5, N)),
        },
        "yes/no": {
            "sex": few("f", "m"),
            "ascites": gappy(RNG.integers(0, 2, N), 0.2),
            "died": few("no", "yes"),
        },
        "label": {"history": few("A34", "A32", "A33", "A30"), "clinic": few("north", "south", "east")},
    },
    "loans": {
        "number": {
            "amount": RNG.integers(40, 1600, N) * 25,
            "rate": [f"{value:.2f}%" for value in RNG.uniform(5, 30, N)],
            "balance": [f"${value:,.2f}" for value in RNG.lognormal(8, 2, N)],
            "delinquent": few(0, 1, 2, 3),
        },
        "label": {
            "grade": few(*"ABCDEFG"),
            "purpose": few("debt_consolidation", "credit_card", "car", "moving"),
            "state": few("CA", "TX", "NY", "FL", "IL", "OH", "GA"),
            "title": [f"job {value}" for value in RNG.zipf(1.5, N) % 90],
        },
        "yes/no": {"joint": few(True, False)},
        "date": {"issued": [f"{1 + i % 28:02d}.{1 + i % 12:02d}.2018" for i in range(N)]},
        "text": {"wish": [f"I need {i} more for the {few('car', 'roof')[i]} that we saw" for i in range(N)]},
        "constant": {"policy": np.ones(N)},
    },
}


def made(name):
    """A made-up table, and the words of its columns."""
    cells = [(column, word, values) for word, part in MADE[name].items() for column, values in part.items()]
    return pd.DataFrame({column: values for column, _, values in cells}), {c: word for c, word, _ in cells}


def public(name):
    """A public table, and the words of its columns."""
    return stored(name), {column: word for word, names in SAID[name].items() for column in names.split()}


JUDGED = {name: made for name in MADE} | {name: public for name in SAID if there(name)}


@pytest.mark.parametrize("name", JUDGED)
def test_nearly_all_columns_of_a_table_are_taken_for_what_a_person_would_say(name, record_property):
    wrong, count = judged(*JUDGED[name](name))
    record_property("wrong", wrong)
    assert len(wrong) <= max(1, 0.25 * count), f"{name}: {wrong}"


def test_ninety_five_in_a_hundred_columns_of_all_tables_are_right():
    each = [judged(*table(name)) for name, table in JUDGED.items()]
    wrong, count = sum(len(names) for names, _ in each), sum(count for _, count in each)
    assert wrong <= (1 - RIGHT) * count, [names for names, _ in each]


TRAPS = {  # what was met in those tables, made up: a person's word, and cells
    "few whole numbers": ("number", RNG.integers(0, 5, N)),
    "whole numbers with gaps, which come as floats": (
        "number",
        np.where(ROWS % 9, RNG.integers(0, 5, N), np.nan),
    ),
    "two whole numbers": ("yes/no", RNG.integers(0, 2, N)),
    "booleans as text": ("yes/no", RNG.choice(["True", "False"], N)),
    "a tall first value": ("number", np.where(RNG.random(N) < 0.9, 0, RNG.integers(1, 99999, N))),
    "thirds": ("number", np.round(RNG.integers(0, 300, N) / 3, 6)),
    "rounded, and one far away": ("number", np.where(ROWS == 7, 1e20, np.round(RNG.normal(50, 9, N), 1))),
    "over many orders of magnitude": ("number", 10.0 ** RNG.uniform(-9, 9, N)),
    "knots as miles": ("number", 1.15078 * RNG.integers(0, 40, N)),
    "years": ("number", RNG.integers(1950, 2020, N)),
    "percent": ("number", [f"{value} %" for value in RNG.integers(0, 100, N)]),
    "money": ("number", [f"${value:,.2f}" for value in RNG.lognormal(8, 2, N)]),
    "decimal commas": ("number", [f"{value:.2f}".replace(".", ",") for value in RNG.normal(0, 9, N)]),
    "marks of gaps among numbers": ("number", np.where(ROWS % 7, RNG.integers(0, 900, N).astype(str), "?")),
    "marks of gaps among labels": ("label", RNG.choice(["a", "b", "c", "?"], N)),
    "codes with leading zeros": ("label", [f"{value:05d}" for value in RNG.integers(0, 40, N)]),
    "letters and figures": ("label", RNG.choice(["A11", "A12", "A14"], N)),
    "many labels": ("label", [f"town {value}" for value in RNG.zipf(1.5, N) % 90]),
    "months": ("label", RNG.choice(["jan", "feb", "mar", "may"], N)),
    "moments with a zone": (
        "date",
        [f"2013-{1 + i % 12:02d}-{1 + i % 28:02d}T{i % 24:02d}:00:00Z" for i in range(N)],
    ),
    "American dates": ("date", [f"{1 + i % 12}/{1 + i % 28}/2023" for i in range(N)]),
    "German dates": ("date", [f"{1 + i % 28:02d}.{1 + i % 12:02d}.2023" for i in range(N)]),
    "order_id": ("identifier", ROWS + 1000),
    "keys": ("identifier", [f"k-{value:06x}" for value in RNG.permutation(10**6)[:N]]),
    "counted rows": ("identifier", ROWS + 1),
    "prose": ("text", [f"the guest of room {i} said that it was {i % 9} too small" for i in range(N)]),
    "one value": ("constant", np.full(N, 2013)),
    "nothing": ("constant", [None] * N),
}


@pytest.mark.parametrize("name", TRAPS)
def test_traps_are_taken_for_what_a_person_would_say(name):
    word, cells = TRAPS[name]
    X = pd.DataFrame({name: cells, "beside": RNG.normal(size=N)})
    column = ctem.inspect(X).columns[0]
    assert agrees(word, column, X[name]), column


@pytest.mark.parametrize("digits", [1, None], ids=["rounded", "continuous"])
def test_the_curve_of_numbers_is_that_of_the_rows_by_their_weights(digits):
    """Below each number lies the share of the rows by weight, up to the error of as many as they are worth."""
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(0, 1, 2000), rng.normal(8, 2, 2000)])
    X = X if digits is None else X.round(digits)
    weights = np.repeat([9.0, 1.0], 2000)
    curve = Schema.fit(read_frame(X[:, None]), weights={"x0": weights}).columns["x0"].codec.transform
    at = np.linspace(-2, 11, 27) + 0.05  # between cells
    below = torch.special.ndtr(curve(torch.from_numpy(at))).numpy()
    share = [weights[each >= X].sum() / weights.sum() for each in at]
    worth = weights.sum() ** 2 / (weights**2).sum()
    assert np.abs(below - share).max() < 3 * 0.5 / worth**0.5


def test_values_of_their_own_stand_out_by_the_weights_of_their_rows():
    rng = np.random.default_rng(0)
    X = np.where(rng.random(2000) < 0.004, 5.0, rng.normal(5, 2, 2000))
    frame, often = read_frame(X[:, None]), np.where(X == 5.0, 30.0, 1.0)
    plain, weighted = (Schema.fit(frame, weights=each) for each in (None, {"x0": often}))
    assert plain.columns["x0"].codec.atoms == ()
    assert weighted.columns["x0"].codec.atoms == (5.0,)
    even = Schema.fit(frame, weights={"x0": np.ones(2000)})
    assert even.to_json() == plain.to_json()


def test_rare_labels_have_the_weight_of_their_rows():
    labels = np.array([f"label {k:04}" for k in range(1200)])
    frame = read_frame(pd.DataFrame({"city": np.concatenate([labels, labels]), "n": np.arange(2400.0)}))
    weight = np.where(np.arange(2400) % 2 == 0, 3.0, 1.0)
    codec = Schema.fit(frame, {"city": "category"}, weights={"city": weight}).columns["city"].codec
    share = np.array(codec.shares)[np.array(codec.codes) == 0]
    values = np.array(codec.values)[np.array(codec.codes) == 0]
    heavy = np.array([int(value[-4:]) % 2 == 0 for value in values])
    assert share[heavy].min() == pytest.approx(3 * share[~heavy].max())


def test_rare_labels_of_a_sample_have_the_counts_of_the_table():
    """A label that the sample missed is added once: it does not count as often as one that it met once by chance."""
    often = {f"label {k:04}": 1 + 99 * (k < 300) for k in range(600)}
    sample = read_frame(pd.DataFrame({"city": [f"label {k:04}" for k in range(300)]}))
    sketch = ColumnSketch(0, None, None, often)
    frame = completed(sample, {"city": sketch})
    cells = frame.columns["city"]
    weights = {"city": rows_of_cells(cells, sketch)}
    codec = Schema.fit(frame, {"city": "category"}, weights=weights).columns["city"].codec
    rare = {v: s for v, s, c in zip(codec.values, codec.shares, codec.codes, strict=True) if c == 0}
    assert rare["label 0299"] == pytest.approx(100 * rare["label 0599"])
