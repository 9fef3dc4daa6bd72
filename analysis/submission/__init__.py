"""Submissions: a model, the records of its runs of a study, and their checks.

A submission is a folder:

submission.yaml    the study, the overrides that choose the model, the authors, the version of the rules: the
                   fields of ``analysis.submission.folder.Submission``
results.parquet    a row for each test run, as ``analysis.declared.study_frames.study_frame`` returns them
records/STUDY/     result.json, config.yaml, provenance.json and metrics.jsonl of every test run and every
                   tuning run, in the layout of run folders
configs/backbone/  the YAML files of the model that are not part of the project
*.py               the modules of the model that are not part of the project
"""
