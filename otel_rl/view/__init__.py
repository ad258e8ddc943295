"""The page that shows runs, from their journals, without any account.

``Pages`` answers the questions of the page; a path below is that of a question, and ``…`` stands
for ``runs/<id>``. A report is the same page with the answers in it.

    panel                       question                     part              script
    list of runs                runs                         runs              runs.js
    compared runs, columns      …/series, …/environment      workspace, health runs.js
    two sides                   compare                      sides             compare.js
    facts, goodput, sections    …/overview                   overview, runs    overview.js
    a chart                     …/panel                      workspace         charts.js
    verdict, causes             …/diagnosis                  diagnoses         overview.js
    evidence of a cause         …/workers, …/series          workers           overview.js
    steps before and after      …/change                     timeline          timeline.js
    strip of events             …/overview                   log               log.js
    timeline                    …/timeline                   timeline          timeline.js
    workers, processes          …/workers                    workers           workers.js
    rollouts in flight          …/in_flight                  rollouts          rollouts.js
    rollouts, prompts, one      …/rollouts, prompts, rollout rollouts          rollouts.js
    lines of consoles           …/log                        log               log.js
    delivery, bounds, counters  …/health                     health            health.js

Three things are read of a journal, each as it grows: ``RunData``, columns of the history for charts
and heatmaps; ``RunHistory``, the same history for a diagnosis, by ``Diagnoses``; and
``RolloutIndex``. Spans and lines of consoles are read anew for each question.
"""
