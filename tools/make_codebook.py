"""Extract the embedded code book, `src/fairbound/columns/codebook.csv`, from the Census Bureau's data
dictionary.

    python tools/make_codebook.py PUMS_Data_Dictionary_2018.csv src/fairbound/columns/codebook.csv

Source: US Census Bureau, 2018 ACS 1-year Public Use Microdata Sample, data dictionary (a work of
the US government, in the public domain):
https://www2.census.gov/programs-surveys/acs/tech_docs/pums/data_dict/. What is kept are facts: the
name of a variable, its codes or its range, and a label. Labels too long for a table are shortened
here, in sight.
"""

from __future__ import annotations

import csv
import re
import sys
from pathlib import Path

# Features, labels, filters and groups of the five tasks, and the usual protected attributes beside
# them.
VARIABLES = (
    "AGEP",
    "COW",
    "SCHL",
    "MAR",
    "OCCP",
    "POBP",
    "RELP",
    "WKHP",
    "SEX",
    "RAC1P",
    "PINCP",
    "PWGTP",
    "ST",
    "DIS",
    "ESP",
    "CIT",
    "MIG",
    "MIL",
    "ANC",
    "NATIVITY",
    "DEAR",
    "DEYE",
    "DREM",
    "ESR",
    "FER",
    "GCL",
    "JWMNP",
    "JWTR",
    "PUMA",
    "POWPUMA",
    "POVPIP",
    "PUBCOV",
    "HISP",
    "LANX",
    "ENG",
    "HICOV",
)
HEADER = ("variable", "kind", "low", "high", "label")
NO_WORK = "N/A (under 16, or no work in 5 years)"
NO_COMMUTE = "N/A (not at work)"

TITLES = {
    "PUMA": "Public use microdata area, 2010 (unique within a state)",
    "POWPUMA": "Place-of-work PUMA, 2010 (unique within a state)",
    "OCCP": "Occupation, 2018 codes",
    "PINCP": "Total person's income, dollars",
    "RAC1P": "Race",
    "HISP": "Hispanic origin",
    "POBP": "Place of birth",
    "RELP": "Relationship to the reference person",
    "ST": "State",
    "POVPIP": "Income-to-poverty ratio, percent",
    "JWMNP": "Travel time to work, minutes",
    "WKHP": "Usual hours worked per week",
    "MIG": "Lived here 1 year ago",
    "FER": "Gave birth within the past 12 months",
}
# By variable and lowest code; "" is the blank. A label names its variable, where it would not be
# understood in the name of an intersection ("Female, Yes").
LABELS = {
    "COW": {
        "": NO_WORK,
        "1": "Private for-profit employee",
        "2": "Private non-profit employee",
        "3": "Local government employee",
        "6": "Self-employed, not incorporated",
        "7": "Self-employed, incorporated",
        "8": "Unpaid family worker",
        "9": "Unemployed, no work in 5 years",
    },
    "SCHL": {
        "15": "Grade 12, no diploma",
        "18": "Some college, under 1 year",
        "19": "Some college, no degree",
        "23": "Professional degree",
    },
    "MAR": {"5": "Never married or under 15"},
    "RELP": {"16": "Institutional group quarters", "17": "Noninstitutional group quarters"},
    "RAC1P": {
        "5": "American Indian or Alaska Native, unspecified",
        "7": "Native Hawaiian or Pacific Islander",
        "8": "Some other race",
        "9": "Two or more races",
    },
    # In the dictionary the headings between these levels are glued to the end of the level before.
    "ESP": {
        "": "N/A (not an own child)",
        "1": "Two parents, both in labor force",
        "2": "Two parents, father in labor force",
        "3": "Two parents, mother in labor force",
        "4": "Two parents, neither in labor force",
        "5": "Father only, in labor force",
        "6": "Father only, not in labor force",
        "7": "Mother only, in labor force",
        "8": "Mother only, not in labor force",
    },
    "CIT": {
        "2": "Born in a U.S. territory",
        "3": "Born abroad of American parents",
        "4": "Naturalized citizen",
        "5": "Not a citizen",
    },
    "MIG": {
        "1": "Same house a year ago",
        "2": "Abroad a year ago",
        "3": "Another U.S. house a year ago",
    },
    "MIL": {
        "1": "On active duty now",
        "2": "On active duty in the past",
        "3": "Reserves or National Guard training only",
        "4": "Never served",
    },
    "ANC": {
        "1": "Single ancestry",
        "2": "Multiple ancestry",
        "3": "Unclassified ancestry",
        "4": "Ancestry not reported",
        "8": "Ancestry suppressed",
    },
    "DEAR": {"1": "Hearing difficulty", "2": "No hearing difficulty"},
    "DEYE": {"1": "Vision difficulty", "2": "No vision difficulty"},
    "DREM": {"1": "Cognitive difficulty", "2": "No cognitive difficulty"},
    "ESR": {
        "1": "Civilian, at work",
        "2": "Civilian, with a job but not at work",
        "4": "Armed forces, at work",
        "5": "Armed forces, with a job but not at work",
    },
    "FER": {"": "N/A (male, under 15 or over 50)", "1": "Gave birth", "2": "Did not give birth"},
    "GCL": {
        "": "N/A (under 30, or institutional)",
        "1": "Living with grandchildren",
        "2": "Not living with grandchildren",
    },
    "JWTR": {"": NO_COMMUTE, "3": "Streetcar or trolley car"},
    "JWMNP": {"": "N/A (not at work, or worked at home)"},
    "POWPUMA": {"": NO_COMMUTE, "1": "Worked outside the U.S.", "100": "Place-of-work PUMA"},
    "WKHP": {"": "N/A (under 16, or did not work)"},
    "PINCP": {"-19998": "Loss of $19998 or more", "-19997": "Loss", "1": "Income"},
    "OCCP": {"": NO_WORK, "9920": "Unemployed, no work in 5 years"},
    "POBP": {
        "13": "Georgia (state)",
        "161": "Georgia (country)",
        "554": "Oceania, not specified, or at sea",
    },
    "HISP": {"1": "Not Hispanic", "24": "Other Hispanic"},
    "LANX": {"1": "Speaks another language at home", "2": "Speaks only English"},
    "ENG": {
        "": "N/A (under 5, or only English)",
        "1": "English very well",
        "2": "English well",
        "3": "English not well",
        "4": "No English",
    },
    "PUBCOV": {"1": "With public coverage", "2": "Without public coverage"},
    "HICOV": {"1": "Insured", "2": "Not insured"},
}


def readable(variable: str, code: str, label: str) -> str:
    """The label as it will stand in a table."""
    if code in LABELS.get(variable, {}):
        return LABELS[variable][code]
    if variable in ("ST", "POBP"):
        label = re.sub(r"/[A-Z]{2}$", "", label)  # Alabama/AL
    if variable == "OCCP":
        label = re.sub(r"^[A-Z]{3}-", "", label).rstrip(".")  # MGR-Chief Executives And Legislators
        label = re.sub(
            r"(?<=\s)(And|Of|Or|The|To|In|For|Except|Including)(?=\s)",
            lambda m: m[0].lower(),
            label,
        )
    return re.sub(r"\b[Ll]ess than (\d+) years? old", r"under \1", label)


def code_of(text: str) -> str:
    """'0010' is 10; 'bbbb', the dictionary's blank, is nothing."""
    return "" if set(text) == {"b"} else str(int(text))


def kind_of(numeric: bool, values: list[tuple[str, str, str]]) -> str:
    if numeric:
        return "number"
    # Area codes are given as one long range: which of its numbers are codes, the dictionary does
    # not say.
    return "areas" if any(low != high for low, high, _ in values) else "codes"


def extract(dictionary: Path) -> list[tuple[str, str, str, str, str]]:
    """Lines of the code book: one for a variable, then one for each of its values."""
    titles: dict[str, str] = {}
    numeric: dict[str, bool] = {}
    # by low code: ST and PUMA stand there twice
    values: dict[str, dict[str, tuple[str, str, str]]] = {}
    with dictionary.open(newline="", encoding="ascii") as lines:
        for record, variable, letter, _, *rest in csv.reader(lines):
            if record == "NAME":
                titles[variable], numeric[variable] = TITLES.get(variable, rest[0]), letter == "N"
            elif variable in VARIABLES:
                low, high = code_of(rest[0]), code_of(rest[1])
                values.setdefault(variable, {})[low] = (low, high, readable(variable, low, rest[2]))
    absent = [variable for variable in VARIABLES if variable not in values]
    if absent:
        raise SystemExit(f"{dictionary} does not describe {', '.join(absent)}")
    book = []
    for variable in VARIABLES:
        listed = sorted(
            values[variable].values(), key=lambda value: (value[0] == "", int(value[0] or 0))
        )
        book.append((variable, kind_of(numeric[variable], listed), "", "", titles[variable]))
        book += [
            (variable, "value" if low else "blank", low, high, label) for low, high, label in listed
        ]
    return book


def main(dictionary: str, target: str) -> None:
    with Path(target).open("w", newline="", encoding="ascii") as out:
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(HEADER)
        writer.writerows(extract(Path(dictionary)))


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(
            "usage: python tools/make_codebook.py PUMS_Data_Dictionary_2018.csv codebook.csv"
        )
    main(*sys.argv[1:])
